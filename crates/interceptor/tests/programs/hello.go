// The least that a Go program can do.
package main

func main() {}
