package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/shop/inventory/shoppb"
)

type inventoryServer struct {
	shoppb.UnimplementedInventoryServer
	me       *shoppb.Identity
	stock    *stock
	settings settings
}

func (s *inventoryServer) Reserve(_ context.Context, request *shoppb.ReserveRequest) (*shoppb.ReserveResponse, error) {
	remaining, err := s.stock.reserve(request.GetItem(), request.GetQuantity())
	if err != nil {
		return nil, asStatus(err, request.GetItem())
	}
	return &shoppb.ReserveResponse{Remaining: remaining, Identity: s.me}, nil
}

func (s *inventoryServer) Watch(request *shoppb.WatchRequest, stream grpc.ServerStreamingServer[shoppb.StockLevel]) error {
	var sent *uint32
	for {
		quantity, changed, err := s.stock.level(request.GetItem())
		if err != nil {
			return asStatus(err, request.GetItem())
		}
		// Another item may be the one that changed.
		if sent == nil || *sent != quantity {
			if err := stream.Send(s.stockLevel(request.GetItem(), quantity)); err != nil {
				return err
			}
			sent = &quantity
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (s *inventoryServer) Restock(stream grpc.ClientStreamingServer[shoppb.RestockRequest, shoppb.RestockResponse]) error {
	response := &shoppb.RestockResponse{Identity: s.me}
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(response)
		}
		if err != nil {
			return err
		}
		if err := s.stock.add(request.GetItem(), request.GetQuantity()); err != nil {
			return asStatus(err, request.GetItem())
		}
		response.Boxes++
		response.Items += request.GetQuantity()
	}
}

func (s *inventoryServer) Scan(stream grpc.BidiStreamingServer[shoppb.ScanRequest, shoppb.StockLevel]) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		quantity, _, err := s.stock.level(request.GetItem())
		if err != nil {
			return asStatus(err, request.GetItem())
		}
		if err := stream.Send(s.stockLevel(request.GetItem(), quantity)); err != nil {
			return err
		}
	}
}

func (s *inventoryServer) stockLevel(item string, quantity uint32) *shoppb.StockLevel {
	low := quantity < s.settings.shopConfig().LowStock
	return &shoppb.StockLevel{Item: item, Quantity: quantity, Low: low, Identity: s.me}
}

func asStatus(err error, item string) error {
	code := codes.NotFound
	if errors.Is(err, errNotEnough) {
		code = codes.FailedPrecondition
	}
	return status.Errorf(code, "%s: %s", item, err)
}

func httpHandler(me *shoppb.Identity, settings settings) http.Handler {
	answer := func(writer http.ResponseWriter, body map[string]any) {
		body["identity"] = me
		writer.Header().Set(identityHeader, identityJSON(me))
		writer.Header().Set("Content-Type", "application/json")
		// The caller may have closed the connection; the error is ignored.
		_ = json.NewEncoder(writer).Encode(body)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(writer http.ResponseWriter, _ *http.Request) {
		answer(writer, map[string]any{"healthy": true})
	})
	mux.HandleFunc("GET /whoami", func(writer http.ResponseWriter, _ *http.Request) {
		answer(writer, map[string]any{})
	})
	mux.HandleFunc("GET /config", func(writer http.ResponseWriter, _ *http.Request) {
		config := settings.shopConfig()
		answer(writer, map[string]any{
			"greeting": config.Greeting, "currency": config.Currency, "discount_percent": config.DiscountPercent,
			"low_stock": config.LowStock, "stage": settings.stage, "api_key": settings.apiKey(),
		})
	})
	return mux
}
