//! The command-line clients of a cluster, of the lab or of any other cluster.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binaries::Binaries;
use crate::command::{run, run_with_input};
use crate::error::{Error, Result};
use crate::paths::Paths;

/// One cluster, reached through a context of a kubeconfig.
#[derive(Clone, Debug)]
pub struct Client {
    name: String,
    /// `None` is the user's own kubeconfig.
    kubeconfig: Option<PathBuf>,
    /// Where the clients keep their caches and settings.
    state: PathBuf,
    binaries: Binaries,
}

impl Client {
    /// A cluster of the lab: its kubeconfig has a context of the cluster's name.
    pub(crate) fn of_lab(
        name: &str,
        kubeconfig: PathBuf,
        state: PathBuf,
        binaries: &Binaries,
    ) -> Self {
        Client {
            name: name.to_owned(),
            kubeconfig: Some(kubeconfig),
            state,
            binaries: binaries.clone(),
        }
    }

    /// An existing cluster: a context of the user's kubeconfig.
    pub fn of_context(context: &str, paths: &Paths, binaries: &Binaries) -> Result<Self> {
        let client = Client {
            name: context.to_owned(),
            kubeconfig: None,
            state: paths.base().join("clients"),
            binaries: binaries.clone(),
        };
        run(client.kubectl().args(["version", "--request-timeout=10s"])).map_err(|error| {
            Error::Refused(format!(
                "the cluster of context `{context}` does not respond; `kubectl config get-contexts` lists the \
                 contexts of this kubeconfig\n{error}"
            ))
        })?;
        Ok(client)
    }

    /// The cluster's name in the lab, or the context's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kubeconfig that holds the context, if it is not the user's own.
    pub fn kubeconfig(&self) -> Option<&Path> {
        self.kubeconfig.as_deref()
    }

    pub fn kubectl(&self) -> Command {
        self.command("kubectl", "--context")
    }

    pub fn helm(&self) -> Command {
        self.command("helm", "--kube-context")
    }

    /// Applies manifests, as `kubectl apply --server-side` does.
    pub fn apply(&self, namespace: &str, manifests: &str) -> Result<()> {
        let arguments = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--namespace",
            namespace,
            "-f",
            "-",
        ];
        run_with_input(self.kubectl().args(arguments), manifests).map(drop)
    }

    /// Creates a namespace. It is an error if it exists.
    pub fn create_new_namespace(&self, namespace: &str) -> Result<()> {
        run(self.kubectl().args(["create", "namespace", namespace])).map(drop).map_err(|error| {
            Error::Refused(format!(
                "cannot create the namespace {namespace} in {}: {error}\nIf it is left from an earlier run, delete it \
                 with `kubectl --context {} delete namespace {namespace}`",
                self.name, self.name
            ))
        })
    }

    /// Creates a namespace unless it exists.
    pub fn create_namespace(&self, namespace: &str) -> Result<()> {
        self.apply(
            namespace,
            &format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {namespace}\n"),
        )
    }

    /// Deletes a namespace and waits until it is gone.
    pub fn delete_namespace(&self, namespace: &str) -> Result<()> {
        let arguments = [
            "delete",
            "namespace",
            namespace,
            "--ignore-not-found",
            "--timeout=120s",
        ];
        run(self.kubectl().args(arguments)).map(drop)
    }

    /// Loads an image archive into an existing cluster. The context's name tells whether it is a kind or a k3d cluster.
    pub fn load_image_into_existing(&self, archive: &Path) -> Result<()> {
        let mut command = if let Some(cluster) = self.name.strip_prefix("kind-") {
            let mut command = Command::new("kind");
            command
                .args(["load", "image-archive", "--name", cluster])
                .arg(archive);
            command
        } else if let Some(cluster) = self.name.strip_prefix("k3d-") {
            let mut command = Command::new("k3d");
            command
                .args(["image", "import", "--cluster", cluster])
                .arg(archive);
            command
        } else if let Some(loader) = std::env::var_os(crate::environment::IMAGE_LOADER) {
            let mut command = Command::new(loader);
            command.arg(&self.name).arg(archive);
            command
        } else {
            return Err(Error::Refused(format!(
                "`{}` is neither a kind nor a k3d context, so the lab does not know how to load {} into it; set {} to \
                 a program that is called with the context and the archive",
                self.name,
                archive.display(),
                crate::environment::IMAGE_LOADER
            )));
        };
        run(&mut command).map(drop)
    }

    fn command(&self, program: &str, context: &str) -> Command {
        let mut command = Command::new(self.binaries.program(program));
        command.args([context, &self.name]);
        // The clients keep their files in the lab's folder, not in the user's home, where they may run as root.
        for (variable, folder) in [
            ("KUBECACHEDIR", "kubectl"),
            ("HELM_CACHE_HOME", "helm/cache"),
            ("HELM_CONFIG_HOME", "helm/config"),
            ("HELM_DATA_HOME", "helm/data"),
        ] {
            command.env(variable, self.state.join(folder));
        }
        if let Some(kubeconfig) = &self.kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
            // The lab's addresses are on this machine, where an HTTP proxy cannot reach them.
            for variable in [
                "HTTP_PROXY",
                "HTTPS_PROXY",
                "NO_PROXY",
                "http_proxy",
                "https_proxy",
                "no_proxy",
            ] {
                command.env_remove(variable);
            }
        }
        command
    }
}
