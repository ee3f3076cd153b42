"""Reports that outlive the daemon and a reboot, in SQLite."""
