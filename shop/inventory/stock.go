package main

import (
	"errors"
	"sync"
)

var (
	errUnknownItem  = errors.New("the shop has no such item")
	errNotEnough    = errors.New("not enough in stock")
	initialQuantity = uint32(1_000_000)
)

// stock counts the items of this replica, in memory.
type stock struct {
	mutex    sync.Mutex
	quantity map[string]uint32
	// changed is closed, and replaced, at every change: it wakes all watchers at once and none can be forgotten.
	changed chan struct{}
}

func newStock() *stock {
	quantity := map[string]uint32{}
	for _, item := range []string{"book", "lamp", "mug", "pen"} {
		quantity[item] = initialQuantity
	}
	return &stock{quantity: quantity, changed: make(chan struct{})}
}

// level returns how many there are, and a channel that is closed when that may have changed.
func (s *stock) level(item string) (uint32, <-chan struct{}, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	quantity, known := s.quantity[item]
	if !known {
		return 0, nil, errUnknownItem
	}
	return quantity, s.changed, nil
}

// reserve takes items out and returns how many are left.
func (s *stock) reserve(item string, quantity uint32) (uint32, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	available, known := s.quantity[item]
	if !known {
		return 0, errUnknownItem
	}
	if available < quantity {
		return 0, errNotEnough
	}
	s.set(item, available-quantity)
	return available - quantity, nil
}

func (s *stock) add(item string, quantity uint32) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	available, known := s.quantity[item]
	if !known {
		return errUnknownItem
	}
	s.set(item, available+quantity)
	return nil
}

func (s *stock) set(item string, quantity uint32) {
	s.quantity[item] = quantity
	close(s.changed)
	s.changed = make(chan struct{})
}
