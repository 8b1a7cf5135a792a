"""What was found, for readers: pages, charts, maps and tables for a terminal."""
