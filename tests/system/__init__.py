"""Tests of the service under a real systemd: the package, the unit, its life. They need root."""
