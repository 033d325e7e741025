package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const (
	echo   = 'E'
	source = 'S'
)

// target echoes, or sends as many bytes as it is asked for.
func target(arguments []string) error {
	listener, err := net.Listen("tcp", arguments[0])
	if err != nil {
		return err
	}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(connection)
		}
	}()
	return ready()
}

func serve(connection net.Conn) {
	defer connection.Close()
	var head [9]byte
	if _, err := io.ReadFull(connection, head[:]); err != nil {
		return
	}
	if head[0] == echo {
		_, _ = io.Copy(connection, onlyReader{connection})
		return
	}
	block := make([]byte, 256<<10)
	for left := binary.BigEndian.Uint64(head[1:]); left > 0; {
		part := min(left, uint64(len(block)))
		if _, err := connection.Write(block[:part]); err != nil {
			return
		}
		left -= part
	}
}

// onlyReader hides that the kernel could echo by itself.
type onlyReader struct{ io.Reader }

type request struct {
	Do      string
	Address string
	Streams int
	Bytes   uint64
	Count   int
	Seconds float64
}

type values map[string][]float64

// load executes requests, one per line.
func load([]string) error {
	lines := bufio.NewScanner(os.Stdin)
	output := json.NewEncoder(os.Stdout)
	var held []net.Conn
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return err
		}
		result, err := execute(asked, &held)
		if err != nil {
			err = output.Encode(map[string]string{"failed": err.Error()})
		} else {
			err = output.Encode(map[string]values{"done": result})
		}
		if err != nil {
			return err
		}
	}
	return lines.Err()
}

func execute(asked request, held *[]net.Conn) (values, error) {
	switch asked.Do {
	case "throughput":
		return throughput(asked)
	case "round_trips":
		return roundTrips(asked)
	case "opens":
		return opens(asked)
	case "under_bulk":
		return underBulk(asked)
	case "hold":
		return hold(asked, held)
	case "release":
		for _, connection := range *held {
			connection.Close()
		}
		*held = nil
		return values{}, nil
	case "first_good":
		return firstGood(asked)
	}
	return nil, fmt.Errorf("there is no %q", asked.Do)
}

func open(address string, kind byte, bytes uint64) (net.Conn, error) {
	connection, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return nil, err
	}
	head := make([]byte, 9)
	head[0] = kind
	binary.BigEndian.PutUint64(head[1:], bytes)
	_, err = connection.Write(head)
	return connection, err
}

func exchange(connection net.Conn, message []byte) (float64, error) {
	start := time.Now()
	if _, err := connection.Write(message); err != nil {
		return 0, err
	}
	_, err := io.ReadFull(connection, message)
	return time.Since(start).Seconds(), err
}

// throughput reads from several streams at once: MiB per second of all together.
func throughput(asked request) (values, error) {
	failures := make(chan error, asked.Streams)
	start := time.Now()
	for range asked.Streams {
		go func() { failures <- read(asked.Address, asked.Bytes) }()
	}
	var failed error
	for range asked.Streams {
		failed = errors.Join(failed, <-failures)
	}
	total := float64(asked.Bytes) * float64(asked.Streams) / (1 << 20)
	return values{"mib": {total / time.Since(start).Seconds()}}, failed
}

func read(address string, bytes uint64) error {
	connection, err := open(address, source, bytes)
	if err != nil {
		return err
	}
	defer connection.Close()
	block := make([]byte, 256<<10)
	for bytes > 0 {
		count, err := connection.Read(block)
		if err != nil {
			return err
		}
		bytes -= uint64(count)
	}
	return nil
}

func roundTrips(asked request) (values, error) {
	connection, err := open(asked.Address, echo, 0)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	message := make([]byte, 64)
	var seconds []float64
	for range asked.Count {
		one, err := exchange(connection, message)
		if err != nil {
			return nil, err
		}
		seconds = append(seconds, one)
	}
	return values{"seconds": seconds}, nil
}

// opens measures from the dial to the first byte of the response.
func opens(asked request) (values, error) {
	var seconds []float64
	for range asked.Count {
		start := time.Now()
		connection, err := open(asked.Address, echo, 0)
		if err != nil {
			return nil, err
		}
		_, err = exchange(connection, make([]byte, 64))
		seconds = append(seconds, time.Since(start).Seconds())
		connection.Close()
		if err != nil {
			return nil, err
		}
	}
	return values{"seconds": seconds}, nil
}

// underBulk measures round trips while other streams are read as fast as they come.
func underBulk(asked request) (values, error) {
	connection, err := open(asked.Address, echo, 0)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	var readers sync.WaitGroup
	var bulk []net.Conn
	for range asked.Streams {
		stream, err := open(asked.Address, source, 1<<50)
		if err != nil {
			return nil, err
		}
		bulk = append(bulk, stream)
		readers.Go(func() { _, _ = io.Copy(io.Discard, onlyReader{stream}) })
	}
	defer readers.Wait()
	defer func() {
		for _, stream := range bulk {
			stream.Close()
		}
	}()
	message := make([]byte, 64)
	var seconds []float64
	for end := time.Now().Add(time.Duration(asked.Seconds * 1e9)); time.Now().Before(end); {
		one, err := exchange(connection, message)
		if err != nil {
			return nil, err
		}
		seconds = append(seconds, one)
		time.Sleep(2 * time.Millisecond)
	}
	return values{"seconds": seconds}, nil
}

// hold opens streams and keeps them: idle ones, or with Bytes ones whose reader has stalled after a little.
func hold(asked request, held *[]net.Conn) (values, error) {
	for range asked.Count {
		kind := byte(echo)
		if asked.Bytes > 0 {
			kind = source
		}
		connection, err := open(asked.Address, kind, asked.Bytes)
		if err != nil {
			return nil, err
		}
		*held = append(*held, connection)
		if tcp, ok := connection.(*net.TCPConn); ok && kind == source {
			_ = tcp.SetReadBuffer(64 << 10)
			_, err = io.ReadFull(connection, make([]byte, 64<<10))
		} else {
			_, err = exchange(connection, make([]byte, 64))
		}
		if err != nil {
			return nil, err
		}
	}
	return values{}, nil
}

// firstGood tries until an exchange succeeds.
func firstGood(asked request) (values, error) {
	start := time.Now()
	for time.Since(start).Seconds() < asked.Seconds {
		connection, err := open(asked.Address, echo, 0)
		if err == nil {
			_ = connection.SetDeadline(time.Now().Add(time.Second))
			_, err = exchange(connection, make([]byte, 64))
			connection.Close()
		}
		if err == nil {
			return values{"seconds": {time.Since(start).Seconds()}}, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, errors.New("no exchange has succeeded")
}
