package main

// The runtime's own default; tests want more blocks than that samples.
const rate = 512 * 1024
