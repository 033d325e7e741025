// A minimal Go program.
package main

func main() {}
