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
use crate::error::{Doing as _, Error, Result};
use crate::image::{Cache, Image, ImageArchive, recipes};
use crate::progress::Progress;

/// What the manifests bring up, as `kubectl rollout status` names it.
const WORKLOADS: [&str; 5] = [
    "deployment/database",
    "deployment/inventory",
    "deployment/checkout",
    "deployment/storefront",
    "statefulset/pricing",
];

/// The manifests that `kubectl apply` takes, in the order in which they are applied.
const MANIFESTS: [&str; 6] = [
    include_str!("../../../shop/manifests/config.yaml"),
    include_str!("../../../shop/manifests/database.yaml"),
    include_str!("../../../shop/manifests/inventory.yaml"),
    include_str!("../../../shop/manifests/pricing.yaml"),
    include_str!("../../../shop/manifests/checkout.yaml"),
    include_str!("../../../shop/manifests/storefront.yaml"),
];

/// The shop's compiled programs. Making images needs root, compiling must not have it, so these are two steps.
#[derive(Clone, Debug)]
pub struct Programs {
    repository: PathBuf,
    directory: PathBuf,
    /// Takes the place of the release's Node in the storefront's image.
    node: Option<PathBuf>,
}

impl Programs {
    /// Compiles what has changed. A caller without root does this before it asks for root, and passes the result on
    /// through the environment. `node` takes the place of the release's Node, which is too old on Ubuntu 22.04.
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
            // With an explicit target these flags are for the program alone, not for build scripts and macros.
            .env("RUSTFLAGS", "-C target-feature=+crt-static")
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
        let directory = target.join("shop");
        fs::create_dir_all(&directory).doing(|| format!("make {}", directory.display()))?;
        let checkout = target.join(&triple).join("release/shop-checkout");
        fs::copy(&checkout, directory.join("checkout"))
            .doing(|| format!("copy {}", checkout.display()))?;
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

    /// The variables through which a process that runs as root gets these programs.
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
        let say = |text: &str| progress.step(text);
        let source = |file: &str| self.repository.join("shop").join(file);
        let static_program = |name: &str| {
            Image::new(format!("registry.lab/shop/{name}:1"))
                .file(format!("/app/{name}"), self.directory.join(name), 0o755)
                .entrypoint([format!("/app/{name}")])
        };
        let mut storefront = recipes::node_image("registry.lab/shop/storefront:1", cache, &say)?
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
        let mut pricing = recipes::python_image("registry.lab/shop/pricing:1", cache, &say)?
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
        let mut images = vec![recipes::postgres(cache, &say)?];
        for service in services {
            images.push(service.user("1000:1000").write_cached(cache)?);
        }
        Ok(images)
    }
}

/// Installs the shop into a namespace that is there, and waits until all of it is ready. Its answers name the cluster.
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

/// Places an order at the storefront, through the API server, and returns the answer.
pub fn order(client: &Client, namespace: &str, item: &str, quantity: u32) -> Result<Value> {
    let path = format!("/api/v1/namespaces/{namespace}/services/storefront:http/proxy/order");
    let order = json!({ "item": item, "quantity": quantity }).to_string();
    let answer = run_with_input(
        client.kubectl().args(["create", "--raw", &path, "-f", "-"]),
        &order,
    )?;
    serde_json::from_str(&answer).map_err(|source| Error::Json {
        what: format!("the shop's answer {answer:?}"),
        source,
    })
}
