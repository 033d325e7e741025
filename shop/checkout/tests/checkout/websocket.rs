use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;

use crate::neighbours::{Running, unreachable_settings};

#[tokio::test]
async fn messages_are_echoed_with_the_identity_until_shutdown() {
    let checkout = Running::start(unreachable_settings().await).await;
    let url = format!("ws://{}/ws?orders=true", checkout.http);
    let (mut socket, _) = connect_async(url).await.unwrap();

    for message in ["one", "two"] {
        socket.send(Message::text(message)).await.unwrap();
        let answer = socket.next().await.unwrap().unwrap();
        let answer: Value = serde_json::from_str(answer.to_text().unwrap()).unwrap();
        assert_eq!(answer["message"], message);
        assert_eq!(answer["identity"]["service"], "checkout");
    }

    drop(checkout.ending);
    assert!(socket.next().await.unwrap().unwrap().is_close());
}
