"""What everything stands on: rankings, derivatives, random streams, inputs, files."""
