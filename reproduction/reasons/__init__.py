"""What one or two years do to the reasons of models of tables: broken share, AUC and O of each."""
