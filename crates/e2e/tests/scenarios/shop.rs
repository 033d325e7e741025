//! The sample shop.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, anyhow, ensure};
use e2e::{Environment, LazyEnvironment, Needs, Scenario, TestNamespace, scenario, until};
use lab::shop::{self, Programs};
use lab::{Paths, Progress};
use libtest_mimic::Trial;

pub(crate) fn scenarios(environment: &Arc<LazyEnvironment>) -> Vec<Trial> {
    vec![
        scenario(
            environment,
            "an_order_passes_through_the_shop_of_each_cluster",
            Needs::Clusters,
            an_order_passes_through,
        ),
        scenario(
            environment,
            "the_shop_speaks_every_protocol",
            Needs::Clusters,
            the_shop_speaks_every_protocol,
        ),
    ]
}

async fn an_order_passes_through(scenario: &Scenario<'_>) -> Result<()> {
    load_images(scenario.environment()?)?;
    for cluster in 0..2 {
        let namespace = scenario.namespace_in(cluster).await?;
        shop::install(&namespace.cluster.client, &namespace.name)?;
        let response = until("an order to pass", async || {
            Ok(Some(shop::order(
                &namespace.cluster.client,
                &namespace.name,
                "book",
                2,
            )?))
        })
        .await?;
        let steps = response["answered_by"]
            .as_array()
            .with_context(|| format!("the response is {response}"))?;
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
                step["cluster"] == *namespace.cluster.name,
                "another cluster responded: {step}"
            );
            let pod = step["pod"].as_str().context("no pod")?;
            namespace
                .pods()
                .get(pod)
                .await
                .with_context(|| format!("{pod} is not a pod of this namespace"))?;
        }
        ensure!(
            response["stored_in"]["database"] == "shop",
            "it was not stored: {response}"
        );
    }
    Ok(())
}

async fn the_shop_speaks_every_protocol(scenario: &Scenario<'_>) -> Result<()> {
    load_images(scenario.environment()?)?;
    let namespace = scenario.namespace().await?;
    shop::install(&namespace.cluster.client, &namespace.name)?;
    namespace.client_pod("client").await?;
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
        wait_for_output(&namespace, command, expected).await?;
    }
    // Each service reports its configuration: the content of the ConfigMap, and a fingerprint of the Secret.
    for service in ["storefront", "checkout", "inventory", "pricing"] {
        wait_for_output(
            &namespace,
            &format!("curl -sS http://{service}:8080/config"),
            "fingerprint",
        )
        .await?;
    }
    Ok(())
}

/// Repeats a command until its output is as expected: a Service may route to its pods a moment after they are ready.
async fn wait_for_output(namespace: &TestNamespace, command: &str, expected: &str) -> Result<()> {
    until(&format!("`{command}` to print {expected}"), async || {
        let output = namespace
            .exec("client", &["bash", "-c", command], None)
            .await?;
        // JSON is written with and without spaces, depending on the language.
        let compact = |text: &str| text.split_whitespace().collect::<String>();
        ensure!(
            compact(&output.stdout).contains(&compact(expected)),
            "it printed {:?} {:?}",
            output.stdout,
            output.stderr
        );
        Ok(Some(()))
    })
    .await
}

/// Builds and loads the images, once for all scenarios.
fn load_images(environment: &Environment) -> Result<()> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    let load = || -> Result<()> {
        let paths = Paths::from_environment();
        let progress = Progress::silent();
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../shop");
        let programs = Programs::build(&repository, &target, None, &progress)?;
        for image in programs.images(&paths.images(), &progress)? {
            environment.load_image(image.path())?;
        }
        Ok(())
    };
    LOADED
        .get_or_init(|| load().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|error| anyhow!(error))
}
