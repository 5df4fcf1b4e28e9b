"""What is told about stored runs: as text for people, as plain data for programs. No IO."""
