module example.com/standin/demo

go 1.24
