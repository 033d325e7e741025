use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::stream::{BoxStream, StreamExt};
use serde_json::{Value, json};
use shop_checkout::proto::inventory_server::{self, InventoryServer};
use shop_checkout::proto::{
    Identity, ReserveRequest, ReserveResponse, RestockRequest, RestockResponse, ScanRequest,
    StockLevel, WatchRequest,
};
use shop_checkout::{Settings, serve};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UdpSocket};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

pub(crate) const STOCK: u32 = 100;

/// A running checkout. It shuts down when this is dropped.
pub(crate) struct Running {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) ending: DropGuard,
}

impl Running {
    pub(crate) async fn start(settings: Settings) -> Self {
        let (http_listener, http) = listen().await;
        let (grpc_listener, grpc) = listen().await;
        let ending = CancellationToken::new();
        tokio::spawn(serve(
            settings,
            http_listener,
            grpc_listener,
            ending.clone(),
        ));
        Self {
            http,
            grpc,
            ending: ending.drop_guard(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        let response = reqwest::get(format!("http://{}{path}", self.http)).await;
        read(response.unwrap()).await
    }

    pub(crate) async fn order(&self, item: &str) -> (u16, Value) {
        let response = reqwest::Client::new()
            .post(format!("http://{}/order", self.http))
            .header("baggage", "user=ada")
            .body(json!({ "item": item, "quantity": 2 }).to_string())
            .send()
            .await;
        read(response.unwrap()).await
    }
}

async fn read(response: reqwest::Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let header = response.headers()["shop-identity"]
        .to_str()
        .unwrap()
        .to_owned();
    let body: Value = response.json().await.unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&header).unwrap(),
        body["identity"]
    );
    (status, body)
}

/// Settings with which every other service is unreachable.
pub(crate) async fn unreachable_settings() -> Settings {
    // The port was free a moment ago, and nothing listens there now.
    let away = listen().await.1.to_string();
    Settings {
        http_port: 0,
        grpc_port: 0,
        inventory: away.clone(),
        pricing_url: format!("http://{away}"),
        pricing_tcp: away.clone(),
        pricing_udp: away.clone(),
        database_url: format!("postgres://shop:secret@{away}/shop"),
        stage: "test".to_owned(),
        config_file: "/nowhere/shop.json".into(),
        api_key_file: "/nowhere/api-key".into(),
    }
}

/// An inventory that only has books, and records the last baggage header.
#[derive(Clone)]
pub(crate) struct FakeInventory {
    pub(crate) address: SocketAddr,
    books: Arc<AtomicU32>,
    baggage: Arc<Mutex<Option<String>>>,
}

impl FakeInventory {
    pub(crate) async fn start() -> Self {
        let (listener, address) = listen().await;
        let fake = Self {
            address,
            books: Arc::new(AtomicU32::new(STOCK)),
            baggage: Arc::default(),
        };
        let server = Server::builder().add_service(InventoryServer::new(fake.clone()));
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        fake
    }

    pub(crate) fn books(&self) -> u32 {
        self.books.load(Ordering::SeqCst)
    }

    pub(crate) fn baggage(&self) -> Option<String> {
        self.baggage.lock().unwrap().clone()
    }
}

#[tonic::async_trait]
impl inventory_server::Inventory for FakeInventory {
    type WatchStream = BoxStream<'static, Result<StockLevel, Status>>;
    type ScanStream = BoxStream<'static, Result<StockLevel, Status>>;

    async fn reserve(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveResponse>, Status> {
        let baggage = request.metadata().get("baggage");
        *self.baggage.lock().unwrap() = baggage.map(|value| value.to_str().unwrap().to_owned());
        let request = request.into_inner();
        match request.item.as_str() {
            "book" => {
                self.books.fetch_sub(request.quantity, Ordering::SeqCst);
                Ok(Response::new(ReserveResponse {
                    remaining: self.books(),
                    identity: Some(identity("inventory")),
                }))
            }
            "lamp" => Err(Status::failed_precondition("no lamps left")),
            item => Err(Status::not_found(format!("no {item}"))),
        }
    }

    async fn restock(
        &self,
        request: Request<Streaming<RestockRequest>>,
    ) -> Result<Response<RestockResponse>, Status> {
        let mut boxes = request.into_inner();
        while let Some(restock) = boxes.message().await? {
            self.books.fetch_add(restock.quantity, Ordering::SeqCst);
        }
        Ok(Response::new(RestockResponse::default()))
    }

    async fn scan(
        &self,
        request: Request<Streaming<ScanRequest>>,
    ) -> Result<Response<Self::ScanStream>, Status> {
        let quantity = self.books();
        let levels = request.into_inner().map(move |question| {
            question.map(|ScanRequest { item }| StockLevel {
                item,
                quantity,
                low: false,
                identity: Some(identity("inventory")),
            })
        });
        Ok(Response::new(levels.boxed()))
    }

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("checkout does not watch"))
    }
}

/// Starts a pricing service with fixed responses, and points `settings` to it.
pub(crate) async fn start_pricing(settings: &mut Settings) {
    let price = json!({
        "total_cents": 1000, "discount_percent": 0, "currency": "EUR", "identity": identity("pricing"),
    });
    let tax = json!({ "tax_cents": 200, "identity": identity("pricing") });
    let rate = json!({ "rate": 1.0, "identity": identity("pricing") });

    let (http, address) = listen().await;
    settings.pricing_url = format!("http://{address}");
    let routes = axum::Router::new().fallback(async || axum::Json(price));
    tokio::spawn(async move { axum::serve(http, routes).await });

    let (tcp, address) = listen().await;
    settings.pricing_tcp = address.to_string();
    tokio::spawn(async move {
        while let Ok((connection, _)) = tcp.accept().await {
            let mut connection = BufReader::new(connection);
            connection.read_line(&mut String::new()).await.unwrap();
            let answer = format!("{tax}\n");
            connection.write_all(answer.as_bytes()).await.unwrap();
        }
    });

    let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    settings.pricing_udp = udp.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((_, sender)) = udp.recv_from(&mut [0; 64]).await {
            udp.send_to(rate.to_string().as_bytes(), sender)
                .await
                .unwrap();
        }
    });
}

fn identity(service: &str) -> Identity {
    Identity {
        service: service.to_owned(),
        cluster: "test".to_owned(),
        pod: format!("{service}-0"),
        replica: "0".to_owned(),
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}
