package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"example.com/shop/inventory/shoppb"
)

// dial starts an inventory inside the test and returns a client of it.
func dial(t *testing.T) shoppb.InventoryClient {
	t.Helper()
	t.Setenv("POD_NAME", "inventory-7d9f-x2x4z")
	t.Setenv("CLUSTER_NAME", "east")
	listener := bufconn.Listen(1 << 16)
	server := newGRPCServer(identityFromEnvironment("inventory"), settingsFromEnvironment())
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	connection, err := grpc.NewClient("passthrough:///inventory",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return shoppb.NewInventoryClient(connection)
}

func TestReserveTakesFromStockAndSaysWhoAnswered(t *testing.T) {
	inventory := dial(t)
	var header metadata.MD
	response, err := inventory.Reserve(t.Context(), &shoppb.ReserveRequest{Item: "book", Quantity: 2}, grpc.Header(&header))
	if err != nil {
		t.Fatal(err)
	}
	if response.GetRemaining() != initialQuantity-2 {
		t.Errorf("remaining: %d", response.GetRemaining())
	}
	if response.GetIdentity().GetReplica() != "x2x4z" {
		t.Errorf("identity: %v", response.GetIdentity())
	}
	want := `{"service":"inventory","cluster":"east","pod":"inventory-7d9f-x2x4z","replica":"x2x4z"}`
	if got := header.Get(identityHeader); len(got) != 1 || got[0] != want {
		t.Errorf("metadata: %v", got)
	}
}

func TestReserveRefusesWhatItCannotGive(t *testing.T) {
	inventory := dial(t)
	for _, test := range []struct {
		item     string
		quantity uint32
		code     codes.Code
	}{
		{"unicorn", 1, codes.NotFound},
		{"book", initialQuantity + 1, codes.FailedPrecondition},
	} {
		_, err := inventory.Reserve(t.Context(), &shoppb.ReserveRequest{Item: test.item, Quantity: test.quantity})
		if status.Code(err) != test.code {
			t.Errorf("%d of %s: %v", test.quantity, test.item, err)
		}
	}
}

func TestWatchSeesTheStockOfARestock(t *testing.T) {
	inventory := dial(t)
	watch, err := inventory.Watch(t.Context(), &shoppb.WatchRequest{Item: "mug"})
	if err != nil {
		t.Fatal(err)
	}
	expectLevel(t, watch.Recv, initialQuantity)

	restock, err := inventory.Restock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The box of pens must not reach the watcher of mugs.
	for _, item := range []string{"pen", "mug"} {
		if err := restock.Send(&shoppb.RestockRequest{Item: item, Quantity: 5}); err != nil {
			t.Fatal(err)
		}
	}
	response, err := restock.CloseAndRecv()
	if err != nil || response.GetBoxes() != 2 || response.GetItems() != 10 {
		t.Errorf("%v, %v", response, err)
	}
	expectLevel(t, watch.Recv, initialQuantity+5)
}

func TestScanAnswersEachQuestionBeforeTheNext(t *testing.T) {
	inventory := dial(t)
	scan, err := inventory.Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range []string{"book", "pen"} {
		if err := scan.Send(&shoppb.ScanRequest{Item: item}); err != nil {
			t.Fatal(err)
		}
		expectLevel(t, scan.Recv, initialQuantity)
	}
	if err := scan.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := scan.Recv(); err != io.EOF {
		t.Errorf("after the last question: %v", err)
	}
}

func TestConfigFollowsTheFileAndKeepsTheSecret(t *testing.T) {
	folder := t.TempDir()
	settings := settings{
		configFile: filepath.Join(folder, "shop.json"),
		apiKeyFile: filepath.Join(folder, "api-key"),
	}
	handler := httpHandler(identityFromEnvironment("inventory"), settings)
	config := func() (string, map[string]any) {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest("GET", "/config", nil))
		text := recorder.Body.String()
		var body map[string]any
		if err := json.Unmarshal([]byte(text), &body); err != nil {
			t.Fatal(err)
		}
		return text, body
	}

	if text, body := config(); body["greeting"] != "Welcome" || !strings.Contains(text, `"present":false`) {
		t.Errorf("without files: %s", text)
	}
	write(t, settings.configFile, `{"greeting": "Hello"}`)
	write(t, settings.apiKeyFile, "abc")
	text, body := config()
	if body["greeting"] != "Hello" || !strings.Contains(text, "sha256:ba7816bf8f01\"") || strings.Contains(text, `"abc"`) {
		t.Errorf("with files: %s", text)
	}
}

func expectLevel(t *testing.T, receive func() (*shoppb.StockLevel, error), quantity uint32) {
	t.Helper()
	level, err := receive()
	if err != nil {
		t.Fatal(err)
	}
	if level.GetQuantity() != quantity || level.GetIdentity().GetService() != "inventory" {
		t.Errorf("level: %v", level)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
