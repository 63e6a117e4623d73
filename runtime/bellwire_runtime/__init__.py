"""What both daemons stand on: settings, database, lifecycle, telemetry, health."""
