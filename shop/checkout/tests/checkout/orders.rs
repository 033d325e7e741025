use serde_json::{Value, json};
use shop_checkout::proto::PlaceOrderRequest;
use shop_checkout::proto::checkout_client::CheckoutClient;
use tonic::Code;

use crate::neighbours::{FakeInventory, Running, STOCK, start_pricing, unreachable_settings};

/// The order fails because of `neighbour`, and says so.
fn check_failed((status, body): &(u16, Value), neighbour: &str) {
    assert_eq!(*status, 502, "{body}");
    assert_eq!(body["neighbour"], neighbour);
    let error = body["error"].as_str().unwrap();
    assert!(error.starts_with(&format!("{neighbour} at 127.0.0.1:")) || error.contains("http://"));
    assert!(!error.contains("secret"), "{error}");
    assert_eq!(body["answered_by"][0]["service"], "checkout");
}

#[tokio::test]
async fn without_other_services_checkout_is_healthy_and_names_the_first_that_failed() {
    let checkout = Running::start(unreachable_settings().await).await;
    let (status, health) = checkout.get("/health").await;
    assert_eq!((status, &health["healthy"]), (200, &json!(true)));
    check_failed(&checkout.order("book").await, "inventory");
    check_failed(&checkout.get("/stock").await, "inventory");
    check_failed(&checkout.get("/orders").await, "database");
}

#[tokio::test]
async fn a_failed_order_releases_its_reservation() {
    let inventory = FakeInventory::start().await;
    let mut settings = unreachable_settings().await;
    settings.inventory = inventory.address.to_string();

    let without_pricing = Running::start(settings.clone()).await;
    check_failed(&without_pricing.order("book").await, "pricing");
    assert_eq!(inventory.books(), STOCK);

    start_pricing(&mut settings).await;
    let without_database = Running::start(settings).await;
    check_failed(&without_database.order("book").await, "database");
    assert_eq!(inventory.books(), STOCK);
    assert_eq!(inventory.baggage().as_deref(), Some("user=ada"));
}

#[tokio::test]
async fn a_refusal_is_not_a_failure() {
    let mut settings = unreachable_settings().await;
    settings.inventory = FakeInventory::start().await.address.to_string();
    let checkout = Running::start(settings).await;
    for (item, expected) in [("unicorn", 404), ("lamp", 409)] {
        let (status, body) = checkout.order(item).await;
        assert_eq!(status, expected, "{body}");
        assert_eq!(body["neighbour"], "inventory");
    }
}

#[tokio::test]
async fn stock_is_scanned_over_one_stream() {
    let mut settings = unreachable_settings().await;
    settings.inventory = FakeInventory::start().await.address.to_string();
    let checkout = Running::start(settings).await;
    let (_, body) = checkout.get("/stock?items=book,pen").await;
    let level = |item| json!({ "item": item, "quantity": STOCK, "low": false });
    assert_eq!(body["stock"], json!([level("book"), level("pen")]));
    assert_eq!(body["answered_by"][1]["over"], "grpc");
}

#[tokio::test]
async fn grpc_errors_carry_the_identity() {
    let checkout = Running::start(unreachable_settings().await).await;
    let url = format!("http://{}", checkout.grpc);
    let mut client = CheckoutClient::connect(url).await.unwrap();
    let request = PlaceOrderRequest {
        item: "book".to_owned(),
        quantity: 1,
        currency: String::new(),
    };
    let status = client.place_order(request).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().starts_with("inventory at "));
    let identity = status.metadata().get("shop-identity").unwrap();
    assert!(
        identity
            .to_str()
            .unwrap()
            .contains(r#""service":"checkout""#)
    );
}

#[tokio::test]
async fn config_follows_its_file_and_the_secret_stays_secret() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = unreachable_settings().await;
    settings.config_file = folder.path().join("shop.json");
    settings.api_key_file = folder.path().join("api-key");
    let checkout = Running::start(settings.clone()).await;

    let (_, before) = checkout.get("/config").await;
    assert_eq!(before["greeting"], "Welcome");
    assert_eq!(
        before["api_key"],
        json!({ "present": false, "fingerprint": null })
    );

    std::fs::write(settings.config_file, r#"{ "greeting": "Hello" }"#).unwrap();
    std::fs::write(settings.api_key_file, "abc").unwrap();
    let (_, after) = checkout.get("/config").await;
    assert_eq!(after["greeting"], "Hello");
    assert_eq!(
        after["api_key"],
        json!({ "present": true, "fingerprint": "sha256:ba7816bf8f01" })
    );
}
