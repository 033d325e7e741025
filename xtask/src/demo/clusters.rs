//! The demo on clusters. Each has the sample shop, which serves orders; then programs of this machine stand in for a
//! service in the first cluster, without and with an operator, and finally one program for a service in all clusters.

mod sessions;

use std::process::{self, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use lab::binaries::Binaries;
use lab::image::ImageArchive;
use lab::shop::{self, Programs};
use lab::{Client, Lab, LabRequest, Lifetime, Paths, Progress, Shape};
use serde_json::Value;

use self::sessions::{Sessions, WithOperator};
use super::DemoArguments;
use crate::{node, privilege, table, workspace};

/// The lab that `--keep` leaves running. Others are named for their process, so that two demos never collide.
const KEPT_LAB_NAME: &str = "demo";
const NAMESPACE: &str = "standin-demo";
const FIRST_ORDER_TIMEOUT: Duration = Duration::from_secs(30);
const ORDER_INTERVAL: Duration = Duration::from_millis(500);

pub(super) fn run(arguments: &DemoArguments, clusters: usize) -> Result<ExitCode> {
    let paths = Paths::from_environment();
    let progress = Progress::to_stderr();
    let uses_lab = arguments.contexts.is_empty();
    if uses_lab {
        crate::lab::prepare(&paths, clusters, 1)?;
    }
    let binaries = Binaries::ensure(&paths, &progress)?;
    let programs = Programs::build(
        &workspace::root()?,
        &workspace::shop_target()?,
        node::for_image()?,
        &progress,
    )?;
    let sessions = Sessions::build(&progress)?;
    // Images are built from Debian packages, which needs root even where the clusters do not.
    let purpose =
        "the lab creates namespaces, devices and control groups, and images of Debian packages";
    let variables = [programs.variables(), sessions.variables()].concat();
    if let Some(exit_code) = privilege::continue_as_root(purpose, &variables)? {
        return Ok(exit_code);
    }
    if uses_lab {
        on_lab(arguments, clusters, &paths, &programs, &sessions, &progress)?;
    } else {
        on_contexts(
            arguments, &paths, &binaries, &programs, &sessions, &progress,
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn on_lab(
    arguments: &DemoArguments,
    clusters: usize,
    paths: &Paths,
    programs: &Programs,
    sessions: &Sessions,
    progress: &Progress,
) -> Result<()> {
    let name = if arguments.keep {
        KEPT_LAB_NAME.to_owned()
    } else {
        format!("demo-{}", process::id())
    };
    let request = LabRequest::new(&name, clusters, 1, Shape::Full)?;
    let lifetime = if arguments.keep {
        Lifetime::Detached
    } else {
        Lifetime::Owned
    };
    let lab = Lab::up(paths, &request, lifetime, progress)?;
    for image in programs.images(&paths.images(), progress)? {
        lab.load_image(image.path())?;
    }
    lab.load_image(sessions.image(&paths.images())?.path())?;
    progress.step("the images of the shop and of agents are in every cluster");
    let clients: Vec<Client> = lab.clusters().iter().map(lab::Cluster::client).collect();
    for client in &clients {
        client.create_namespace(NAMESPACE)?;
    }
    let shown = show(&clients, progress)
        .and_then(|()| sessions.show(&clients, WithOperator::Yes, arguments.keep));
    if arguments.keep {
        eprintln!(
            "
Inspect it with:  cargo xtask lab kubectl east --name {KEPT_LAB_NAME} -- get pods -A"
        );
        eprintln!("End it with:      cargo xtask lab down --name {KEPT_LAB_NAME}");
    } else {
        Lab::down(paths, &name)?;
        progress.step("the clusters are gone; `--keep` leaves them running");
    }
    shown
}

fn on_contexts(
    arguments: &DemoArguments,
    paths: &Paths,
    binaries: &Binaries,
    programs: &Programs,
    sessions: &Sessions,
    progress: &Progress,
) -> Result<()> {
    let clients = arguments
        .contexts
        .iter()
        .map(|context| Client::of_context(context, paths, binaries))
        .collect::<lab::Result<Vec<_>>>()?;
    let mut images: Vec<ImageArchive> = programs.images(&paths.images(), progress)?;
    images.push(sessions.image(&paths.images())?);
    for client in &clients {
        for image in &images {
            client.load_image_into_existing(image.path())?;
        }
    }
    // Only what this run has made is removed afterwards.
    for client in &clients {
        client.create_new_namespace(NAMESPACE)?;
    }
    // An existing cluster gets no operator from the demo.
    let shown = show(&clients, progress)
        .and_then(|()| sessions.show(&clients, WithOperator::No, arguments.keep));
    if !arguments.keep {
        for client in &clients {
            client.delete_namespace(NAMESPACE)?;
        }
        progress.step(format!(
            "the namespace {NAMESPACE} is gone from every cluster; `--keep` leaves it"
        ));
    }
    shown
}

/// Installs the shop everywhere and places one order in each cluster.
fn show(clients: &[Client], progress: &Progress) -> Result<()> {
    thread::scope(|scope| {
        let installs: Vec<_> = clients
            .iter()
            .map(|client| {
                scope.spawn(move || -> lab::Result<()> {
                    shop::install(client, NAMESPACE)?;
                    progress.step(format!("{}: the shop is open", client.name()));
                    Ok(())
                })
            })
            .collect();
        installs.into_iter().try_for_each(|install| {
            install
                .join()
                .map_err(|_| anyhow!("an installation panicked"))?
                .map_err(anyhow::Error::from)
        })
    })?;
    for client in clients {
        let response = first_order(client)?;
        println!("\nAn order in {}:", client.name());
        print!("{}", render(client.name(), &response)?);
    }
    Ok(())
}

/// Retries, because pods are ready a moment before every node has routes to them.
fn first_order(client: &Client) -> Result<Value> {
    let began = Instant::now();
    loop {
        match shop::order(client, NAMESPACE, "book", 2) {
            Err(_) if began.elapsed() < FIRST_ORDER_TIMEOUT => thread::sleep(ORDER_INTERVAL),
            response => return Ok(response?),
        }
    }
}

/// The services that handled an order. A service of another cluster would mean that the clusters are not isolated.
fn render(cluster: &str, response: &Value) -> Result<String> {
    let steps = response["answered_by"]
        .as_array()
        .with_context(|| format!("the shop responded with {response}"))?;
    let mut rows = Vec::new();
    for step in steps {
        let field = |name: &str| step[name].as_str().unwrap_or("?").to_owned();
        if field("cluster") != cluster {
            bail!(
                "{} of cluster {} handled an order in {cluster}",
                field("service"),
                field("cluster")
            );
        }
        rows.push(vec![
            field("service"),
            field("over"),
            field("cluster"),
            field("pod"),
            field("replica"),
        ]);
    }
    Ok(table::render(
        &["service", "over", "cluster", "pod", "replica"],
        &[],
        &rows,
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_order_is_shown_with_all_services_that_handled_it() {
        let step = json!({"service": "checkout", "over": "grpc", "cluster": "east", "pod": "checkout-1-a", "replica": "a"});
        let text = render("east", &json!({ "answered_by": [step] })).unwrap();
        assert!(
            text.lines().nth(1).unwrap().starts_with("checkout"),
            "{text}"
        );
    }

    #[test]
    fn a_response_from_another_cluster_is_an_error() {
        let response = json!({ "answered_by": [{"service": "checkout", "cluster": "west"}] });
        let error = render("east", &response).unwrap_err().to_string();
        assert_eq!(error, "checkout of cluster west handled an order in east");
    }
}
