//! The sample shop, which later stories take over piece by piece.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, anyhow, ensure};
use e2e::{LaterWorld, Needs, Stage, Story, World, tell, until};
use lab::shop::{self, Programs};
use lab::{Paths, Progress};
use libtest_mimic::Trial;

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    vec![
        tell(
            world,
            "an_order_passes_through_the_shop_of_each_cluster",
            Needs::Clusters,
            an_order_passes_through,
        ),
        tell(
            world,
            "the_shop_speaks_every_protocol",
            Needs::Clusters,
            the_shop_speaks_every_protocol,
        ),
    ]
}

async fn an_order_passes_through(story: &Story<'_>) -> Result<()> {
    load_images(story.world()?)?;
    for cluster in 0..2 {
        let stage = story.stage_in(cluster).await?;
        shop::install(&stage.cluster.client, &stage.namespace)?;
        let answer = until("an order to pass", async || {
            Ok(Some(shop::order(
                &stage.cluster.client,
                &stage.namespace,
                "book",
                2,
            )?))
        })
        .await?;
        let steps = answer["answered_by"]
            .as_array()
            .with_context(|| format!("the answer is {answer}"))?;
        let path: Vec<String> = steps
            .iter()
            .map(|step| {
                format!(
                    "{} {}",
                    step["service"].as_str().unwrap_or("?"),
                    step["over"].as_str().unwrap_or("?")
                )
            })
            .collect();
        let expected = [
            "storefront http/1.1",
            "checkout http/1.1",
            "inventory grpc",
            "pricing http/1.1",
            "pricing tcp",
            "pricing udp",
        ];
        ensure!(path == expected, "the order passed through {path:?}");
        for step in steps {
            ensure!(
                step["cluster"] == *stage.cluster.name,
                "another cluster answered: {step}"
            );
            let pod = step["pod"].as_str().context("no pod")?;
            stage
                .pods()
                .get(pod)
                .await
                .with_context(|| format!("{pod} is not a pod of this namespace"))?;
        }
        ensure!(
            answer["stored_in"]["database"] == "shop",
            "it was not stored: {answer}"
        );
    }
    Ok(())
}

async fn the_shop_speaks_every_protocol(story: &Story<'_>) -> Result<()> {
    load_images(story.world()?)?;
    let stage = story.stage().await?;
    shop::install(&stage.cluster.client, &stage.namespace)?;
    stage.client_pod("client").await?;
    let websocket = "exec 3<>/dev/tcp/checkout/8080; printf 'GET /ws HTTP/1.1\\r\\nHost: checkout\\r\\nConnection: \
                     Upgrade\\r\\nUpgrade: websocket\\r\\nSec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: \
                     dGhlIHNhbXBsZSBub25jZQ==\\r\\n\\r\\n' >&3; read -r -t 5 -u 3 line; echo \"$line\"";
    for (command, expected) in [
        (
            "curl -sS http://storefront:8080/whoami",
            "\"service\":\"storefront\"",
        ),
        (
            "curl -sS --http2-prior-knowledge -w '%{http_version}' http://storefront:8081/whoami",
            "}2",
        ),
        (
            "curl -sS http://checkout:8080/stock?items=book,pen",
            "\"service\":\"inventory\"",
        ),
        (
            "curl -sS http://pricing:8080/config",
            "\"service\":\"pricing\"",
        ),
        (
            "timeout 5 curl -sSN http://storefront:8080/events | head -n 1",
            "event: hello",
        ),
        (websocket, "101 Switching Protocols"),
        (
            "exec 3<>/dev/tcp/pricing/7000; echo 'TAX 2500' >&3; read -r -t 5 -u 3 line; echo \"$line\"",
            "pricing-0",
        ),
        (
            "echo 'RATE EUR USD' | socat -t 3 - UDP4:pricing:7001",
            "pricing-0",
        ),
    ] {
        answers(&stage, command, expected).await?;
    }
    // What each service says of its configuration: the ConfigMap's words, and of the Secret only a fingerprint.
    for service in ["storefront", "checkout", "inventory", "pricing"] {
        answers(
            &stage,
            &format!("curl -sS http://{service}:8080/config"),
            "fingerprint",
        )
        .await?;
    }
    Ok(())
}

/// Asks until the answer is as expected: a Service may know its pods a moment later than they are ready.
async fn answers(stage: &Stage, command: &str, expected: &str) -> Result<()> {
    until(&format!("`{command}` to say {expected}"), async || {
        let output = stage.exec("client", &["bash", "-c", command], None).await?;
        // JSON is written with and without spaces, depending on the language.
        let compact = |text: &str| text.split_whitespace().collect::<String>();
        ensure!(
            compact(&output.stdout).contains(&compact(expected)),
            "it said {:?} {:?}",
            output.stdout,
            output.stderr
        );
        Ok(Some(()))
    })
    .await
}

/// Builds and loads the images once, whichever story comes first.
fn load_images(world: &World) -> Result<()> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    let load = || -> Result<()> {
        let paths = Paths::from_environment();
        let progress = Progress::silent();
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../shop");
        let programs = Programs::build(&repository, &target, None, &progress)?;
        for image in programs.images(&paths.images(), &progress)? {
            world.load_image(image.path())?;
        }
        Ok(())
    };
    LOADED
        .get_or_init(|| load().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|error| anyhow!(error))
}
