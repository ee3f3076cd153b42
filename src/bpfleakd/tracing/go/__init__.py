"""Go programs as they are traced: heap profile, goroutines, and the switch of the profile."""
