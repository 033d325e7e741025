//! `cargo xtask lab`: manages real clusters on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand, ValueEnum};
use lab::binaries::Binaries;
use lab::host_checks::{self, ResourceDemand};
use lab::wire::{Conditions, Loss, Rate};
use lab::{Lab, LabRequest, LabStatus, Lifetime, Paths, Power, Progress, Shape};

use crate::{packages, privilege, process};

/// The name of the lab when none is given.
const DEFAULT_NAME: &str = "lab";

const PURPOSE_OF_ROOT: &str = "the lab creates namespaces, devices and control groups";

#[derive(Debug, Args)]
pub(crate) struct LabArguments {
    /// The name of the lab; several can run at the same time.
    #[arg(long, global = true, default_value = DEFAULT_NAME)]
    name: String,
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Start clusters; those that run already are kept.
    Up {
        /// How many clusters: east, west, north, south.
        #[arg(long, default_value_t = 2)]
        clusters: usize,
        /// How many nodes in each.
        #[arg(long, default_value_t = 1)]
        nodes: usize,
        /// API server and controllers only: less memory, no pods.
        #[arg(long)]
        control_plane_only: bool,
    },
    /// Stop a lab and remove everything of it.
    Down {
        /// Every lab of this user.
        #[arg(long)]
        all: bool,
    },
    /// Show the running labs and their faults.
    Status {
        /// As JSON, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Print a kubeconfig with one context per cluster.
    Kubeconfig,
    /// Run the lab's own kubectl in a cluster.
    Kubectl {
        /// Such as east.
        cluster: String,
        #[arg(last = true, required = true)]
        arguments: Vec<String>,
    },
    /// Load image archives (docker save, podman save, the lab's own) into every node.
    LoadImage {
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
    /// Print the log of a program of a node.
    Logs {
        /// Such as east-1.
        node: String,
        /// Such as kubelet. Without one, the programs are listed.
        component: Option<String>,
    },
    /// Run a command inside a node.
    Exec {
        node: String,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Break the link between two clusters, or between a cluster and `host`, this machine.
    Fault(FaultArguments),
    /// Make links perfect again: the one between two endpoints, or all.
    Heal {
        #[arg(requires = "other")]
        one: Option<String>,
        other: Option<String>,
    },
    /// Stop, start, restart, pause or continue a node or a program of it.
    Power {
        action: PowerAction,
        /// Such as east-1.
        node: String,
        /// Such as kube-apiserver or containerd; the whole node without one.
        component: Option<String>,
    },
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("fault").required(true).multiple(true)))]
struct FaultArguments {
    /// A cluster, or `host`.
    one: String,
    /// Another cluster, or `host`.
    other: String,
    /// Nothing passes.
    #[arg(long, group = "fault")]
    cut: bool,
    /// How long each packet takes, such as 20ms.
    #[arg(long, group = "fault", value_parser = lab::wire::parse_delay)]
    delay: Option<Duration>,
    /// How much the delay varies, such as 5ms.
    #[arg(long, group = "fault", value_parser = lab::wire::parse_delay)]
    jitter: Option<Duration>,
    /// How many packets are lost, such as 1%.
    #[arg(long, group = "fault")]
    loss: Option<Loss>,
    /// How much passes, such as 10mbit.
    #[arg(long, group = "fault")]
    rate: Option<Rate>,
    /// Only packets from the first to the second.
    #[arg(long)]
    one_way: bool,
    /// The first may not open connections to the second, which may still dial out.
    #[arg(long, group = "fault")]
    undialable: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PowerAction {
    Stop,
    Start,
    Restart,
    Pause,
    Continue,
}

pub(crate) fn run(arguments: LabArguments) -> Result<ExitCode> {
    let paths = Paths::from_environment();
    if let LabCommand::Up {
        clusters, nodes, ..
    } = arguments.command
    {
        // A lab that runs already needs resources only for what is added, which is checked later.
        let (clusters, nodes) = if paths.run().join(&arguments.name).exists() {
            (0, 0)
        } else {
            (clusters, nodes)
        };
        prepare(&paths, clusters, nodes)?;
    }
    if let Some(exit_code) = privilege::continue_as_root(PURPOSE_OF_ROOT, &[])? {
        return Ok(exit_code);
    }
    let name = &arguments.name;
    match arguments.command {
        LabCommand::Up {
            clusters,
            nodes,
            control_plane_only,
        } => {
            let shape = if control_plane_only {
                Shape::ControlPlaneOnly
            } else {
                Shape::Full
            };
            let request = LabRequest::new(name, clusters, nodes, shape)?;
            let progress = Progress::to_stderr();
            Lab::up(&paths, &request, Lifetime::Detached, &progress)?;
            progress.step("`cargo xtask lab kubectl east -- get nodes` shows one; `lab kubeconfig` is for other programs");
        }
        LabCommand::Down { all } => down(&paths, name, all)?,
        LabCommand::Status { json } => status(&paths, json)?,
        LabCommand::Kubeconfig => print!("{}", read(&Lab::attach(&paths, name)?.kubeconfig())?),
        LabCommand::Kubectl { cluster, arguments } => {
            let mut kubectl = Lab::attach(&paths, name)?
                .cluster(&cluster)?
                .client()
                .kubectl();
            return run_and_exit(kubectl.args(arguments));
        }
        LabCommand::LoadImage { archives } => load_images(&Lab::attach(&paths, name)?, &archives)?,
        LabCommand::Logs { node, component } => {
            logs(&Lab::attach(&paths, name)?, &node, component.as_deref())?;
        }
        LabCommand::Exec { node, command } => {
            return exec(&Lab::attach(&paths, name)?, &node, &command);
        }
        LabCommand::Fault(fault) => set_fault(&Lab::attach(&paths, name)?, &fault)?,
        LabCommand::Heal { one, other } => {
            let lab = Lab::attach(&paths, name)?;
            match one.zip(other) {
                Some((one, other)) => lab.heal_link(&one, &other)?,
                None => lab.heal()?,
            }
        }
        LabCommand::Power {
            action,
            node,
            component,
        } => {
            power(
                &Lab::attach(&paths, name)?,
                action,
                &node,
                component.as_deref(),
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The preparation that runs as the caller, not as root: installs packages, and builds programs from source.
/// The machine is checked first, so that nothing is changed on one that cannot run the lab.
pub(crate) fn prepare(paths: &Paths, clusters: usize, nodes: usize) -> Result<()> {
    let demand = ResourceDemand {
        clusters: clusters as u64,
        nodes: (clusters * nodes) as u64,
    };
    host_checks::check_before_preparing(paths, demand)?;
    privilege::check(PURPOSE_OF_ROOT)?;
    packages::install_missing(&host_checks::REQUIREMENTS)?;
    Binaries::ensure(paths, &Progress::to_stderr())?;
    Ok(())
}

fn down(paths: &Paths, name: &str, all: bool) -> Result<()> {
    let progress = Progress::to_stderr();
    let names = if all {
        Lab::list(paths)
    } else {
        vec![name.to_owned()]
    };
    for name in names {
        if Lab::down(paths, &name)? {
            progress.step(format!("lab {name} is gone"));
        } else {
            progress.step(format!("no lab {name} runs"));
        }
    }
    Ok(())
}

fn load_images(lab: &Lab, archives: &[PathBuf]) -> Result<()> {
    let progress = Progress::to_stderr();
    for archive in archives {
        lab.load_image(archive)?;
        progress.step(format!("{} is in every node", archive.display()));
    }
    Ok(())
}

/// One log, or the list of all logs of a node.
fn logs(lab: &Lab, node: &str, component: Option<&str>) -> Result<()> {
    let cluster = lab.cluster_of_node(node)?;
    if let Some(component) = component {
        print!("{}", read(&cluster.log(node, component)?)?);
        return Ok(());
    }
    for component in cluster.components(node)? {
        println!(
            "{:<26} {}",
            component.name,
            cluster.log(node, &component.name)?.display()
        );
    }
    Ok(())
}

fn exec(lab: &Lab, node: &str, command: &[String]) -> Result<ExitCode> {
    run_and_exit(lab.cluster_of_node(node)?.in_node(node)?.args(command))
}

/// Runs a command and exits with its status.
fn run_and_exit(command: &mut Command) -> Result<ExitCode> {
    let status = command.status().context("cannot run the command")?;
    Ok(process::exit_code(status))
}

fn read(file: &Path) -> Result<String> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Sets the conditions of a link. Conditions that are not given are perfect. Dialling is separate: forbidding it does not
/// change the conditions of packets.
fn set_fault(lab: &Lab, fault: &FaultArguments) -> Result<()> {
    if fault.undialable {
        lab.set_dialling(&fault.one, &fault.other, false)?;
    }
    let conditions = Conditions {
        cut: fault.cut,
        delay: fault.delay.unwrap_or_default(),
        jitter: fault.jitter.unwrap_or_default(),
        loss: fault.loss.unwrap_or_default(),
        rate: fault.rate,
    };
    if conditions.is_perfect() {
        return Ok(());
    }
    if fault.one_way {
        lab.set_direction(&fault.one, &fault.other, &conditions)?;
    } else {
        lab.set_link(&fault.one, &fault.other, &conditions)?;
    }
    Ok(())
}

fn power(lab: &Lab, action: PowerAction, node: &str, component: Option<&str>) -> Result<()> {
    let cluster = lab.cluster_of_node(node)?;
    match (action, component) {
        (PowerAction::Stop, None) => cluster.stop_node(node)?,
        (PowerAction::Start, None) => cluster.start_node(node)?,
        (PowerAction::Restart, None) => {
            cluster.stop_node(node)?;
            cluster.start_node(node)?;
        }
        (PowerAction::Pause, None) => cluster.pause_node(node)?,
        (PowerAction::Continue, None) => cluster.continue_node(node)?,
        (PowerAction::Stop, Some(component)) => cluster.stop_component(node, component)?,
        (PowerAction::Start, Some(component)) => cluster.start_component(node, component)?,
        (PowerAction::Restart, Some(component)) => cluster.restart_component(node, component)?,
        (PowerAction::Pause, Some(component)) => cluster.pause_component(node, component)?,
        (PowerAction::Continue, Some(component)) => cluster.continue_component(node, component)?,
    }
    Ok(())
}

fn status(paths: &Paths, json: bool) -> Result<()> {
    let mut list = Vec::new();
    for name in Lab::list(paths) {
        match Lab::attach(paths, &name) {
            Ok(lab) => list.push(lab.status()?),
            Err(lab::Error::NotRunning(_)) => {
                eprintln!(
                    "lab {name} was killed; `cargo xtask lab down --name {name}` removes what it left"
                );
            }
            Err(error) => return Err(error.into()),
        }
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&list)?);
        return Ok(());
    }
    if list.is_empty() {
        println!("no lab runs; `cargo xtask lab up` starts one");
    }
    for status in list {
        print!("{}", render(&status));
    }
    Ok(())
}

fn render(status: &LabStatus) -> String {
    let lifetime = if status.detached {
        "until `lab down`"
    } else {
        "while its owner runs"
    };
    let mut text = format!("lab {} on {}, {lifetime}\n", status.name, status.network);
    for node in &status.nodes {
        let power = match node.power {
            Power::On => "on",
            Power::Off => "off",
            Power::Frozen => "paused",
        };
        text += &format!("  {:<10} {:<14} {power}\n", node.node, node.address);
        for component in &node.components {
            let state = format!("{:?}", component.state).to_lowercase();
            let restarts = match component.restarts {
                0 => String::new(),
                times => {
                    format!(
                        ", restarted {times} times, last {}",
                        component.last_exit.as_deref().unwrap_or("unknown")
                    )
                }
            };
            text += &format!("    {:<26} {state}{restarts}\n", component.name);
        }
    }
    for link in &status.links {
        let dialling = if link.dialling { "" } else { ", may not dial" };
        text += &format!(
            "  {} -> {}: {}{dialling}; {} packets forwarded, {} lost, {} cut\n",
            link.from,
            link.to,
            link.conditions,
            link.counters.forwarded.packets,
            link.counters.lost.packets,
            link.counters.cut.packets,
        );
    }
    text
}
