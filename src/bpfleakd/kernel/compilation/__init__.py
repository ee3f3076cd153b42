"""What bcc makes of our C: the source that it gets, and the programs that come back, cached."""
