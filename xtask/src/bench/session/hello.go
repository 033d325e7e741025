// Package main is a program that does nothing, to measure its start.
package main

func main() {
	println("hello")
}
