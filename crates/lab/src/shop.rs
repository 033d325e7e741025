//! The sample shop: built from the repository, made into images, installed into a cluster.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::client::Client;
use crate::command::{cargo, run, run_with_input};
use crate::environment;
use crate::error::{Error, ErrorContext as _, Result};
use crate::image::{Cache, Image, ImageArchive, recipes};
use crate::progress::Progress;
use crate::standind::STATIC_FLAGS;

/// The workloads of the manifests, as arguments of `kubectl rollout status`.
const WORKLOADS: [&str; 5] = [
    "deployment/database",
    "deployment/inventory",
    "deployment/checkout",
    "deployment/storefront",
    "statefulset/pricing",
];

/// The manifests, in the order in which they are applied.
const MANIFESTS: [&str; 6] = [
    include_str!("../../../shop/manifests/config.yaml"),
    include_str!("../../../shop/manifests/database.yaml"),
    include_str!("../../../shop/manifests/inventory.yaml"),
    include_str!("../../../shop/manifests/pricing.yaml"),
    include_str!("../../../shop/manifests/checkout.yaml"),
    include_str!("../../../shop/manifests/storefront.yaml"),
];

/// The shop's compiled programs. Building images needs root and compiling must not run as root, so these are two steps.
#[derive(Clone, Debug)]
pub struct Programs {
    repository: PathBuf,
    directory: PathBuf,
    /// Replaces the distribution's Node in the storefront's image.
    node: Option<PathBuf>,
}

impl Programs {
    /// Compiles what has changed. A caller without root does this before it becomes root, and passes the result on through
    /// the environment. `node` replaces the distribution's Node, which is too old on Ubuntu 22.04.
    pub fn build(
        repository: &Path,
        target: &Path,
        node: Option<PathBuf>,
        progress: &Progress,
    ) -> Result<Self> {
        if let Some(directory) = env::var_os(environment::SHOP_PROGRAMS) {
            return Ok(Programs {
                repository: repository.to_owned(),
                directory: directory.into(),
                node: env::var_os(environment::SHOP_NODE).map(PathBuf::from),
            });
        }
        progress.step("building the sample shop");
        let triple = format!("{}-unknown-linux-gnu", env::consts::ARCH);
        run(cargo(repository)
            .env("RUSTFLAGS", STATIC_FLAGS)
            .env("CARGO_TARGET_DIR", target)
            .args([
                "build",
                "--locked",
                "--release",
                "--package",
                "shop-checkout",
                "--target",
                &triple,
            ]))?;
        let checkout = target.join(&triple).join("release/shop-checkout");
        Self::with_checkout(repository, target, &checkout, node)
    }

    /// Like [`Programs::build`], with a checkout service that is already compiled.
    pub fn with_checkout(
        repository: &Path,
        target: &Path,
        checkout: &Path,
        node: Option<PathBuf>,
    ) -> Result<Self> {
        let directory = target.join("shop");
        fs::create_dir_all(&directory)
            .with_context(|| format!("create {}", directory.display()))?;
        fs::copy(checkout, directory.join("checkout"))
            .with_context(|| format!("copy {}", checkout.display()))?;
        run(Command::new("go")
            .current_dir(repository.join("shop/inventory"))
            .env("CGO_ENABLED", "0")
            .args([
                "build",
                "-buildvcs=false",
                "-trimpath",
                "-ldflags=-s -w",
                "-o",
            ])
            .arg(directory.join("inventory"))
            .arg("."))?;
        Ok(Programs {
            repository: repository.to_owned(),
            directory,
            node,
        })
    }

    /// The environment variables that pass these programs to a process that runs as root.
    pub fn variables(&self) -> Vec<(&'static str, &OsStr)> {
        let node = self
            .node
            .iter()
            .map(|node| (environment::SHOP_NODE, node.as_os_str()));
        [(environment::SHOP_PROGRAMS, self.directory.as_os_str())]
            .into_iter()
            .chain(node)
            .collect()
    }

    /// The images of the services and of their database.
    pub fn images(&self, cache: &Cache, progress: &Progress) -> Result<Vec<ImageArchive>> {
        let report = |text: &str| progress.step(text);
        let source = |file: &str| self.repository.join("shop").join(file);
        let static_program = |name: &str| {
            Image::new(format!("registry.lab/shop/{name}:1"))
                .file(format!("/app/{name}"), self.directory.join(name), 0o755)
                .entrypoint([format!("/app/{name}")])
        };
        let mut storefront = recipes::node_image("registry.lab/shop/storefront:1", cache, &report)?
            .entrypoint(["/usr/bin/node", "/app/main.mjs"])
            .environment("NODE_ENV", "production");
        for file in ["main.mjs", "storefront.mjs", "shop.mjs"] {
            storefront = storefront.file(
                format!("/app/{file}"),
                source(&format!("storefront/{file}")),
                0o644,
            );
        }
        if let Some(node) = &self.node {
            storefront = storefront.file("/usr/bin/node", node, 0o755);
        }
        let mut pricing = recipes::python_image("registry.lab/shop/pricing:1", cache, &report)?
            .entrypoint(["/usr/bin/python3", "/app/pricing.py"])
            .environment("PYTHONDONTWRITEBYTECODE", "1")
            .environment("PYTHONUNBUFFERED", "1");
        for file in ["pricing.py", "shop.py"] {
            pricing = pricing.file(
                format!("/app/{file}"),
                source(&format!("pricing/{file}")),
                0o644,
            );
        }
        let services = [
            static_program("checkout"),
            static_program("inventory"),
            storefront,
            pricing,
        ];
        let mut images = vec![recipes::postgres(cache, &report)?];
        for service in services {
            images.push(service.user("1000:1000").write_cached(cache)?);
        }
        Ok(images)
    }
}

/// Installs the shop into an existing namespace, and waits until all workloads are ready. Its responses contain the
/// cluster's name.
pub fn install(client: &Client, namespace: &str) -> Result<()> {
    let cluster = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: cluster\ndata:\n  name: {}\n",
        client.name()
    );
    client.apply(namespace, &cluster)?;
    client.apply(namespace, &MANIFESTS.join("\n---\n"))?;
    for workload in WORKLOADS {
        let status = run(client.kubectl().args([
            "--namespace",
            namespace,
            "rollout",
            "status",
            workload,
            "--timeout=180s",
        ]));
        if let Err(error) = status {
            let pods = run(client.kubectl().args([
                "--namespace",
                namespace,
                "get",
                "pods",
                "--output=wide",
            ]));
            return Err(Error::Refused(format!(
                "{workload} of the shop in {} is not ready: {error}\n{}",
                client.name(),
                pods.unwrap_or_default()
            )));
        }
    }
    Ok(())
}

/// Sends an order to the storefront, through the API server's proxy, and returns the response.
pub fn order(client: &Client, namespace: &str, item: &str, quantity: u32) -> Result<Value> {
    let path = format!("/api/v1/namespaces/{namespace}/services/storefront:http/proxy/order");
    let order = json!({ "item": item, "quantity": quantity }).to_string();
    let response = run_with_input(
        client.kubectl().args(["create", "--raw", &path, "-f", "-"]),
        &order,
    )?;
    serde_json::from_str(&response).map_err(|source| Error::Json {
        what: format!("the shop's response {response:?}"),
        source,
    })
}
