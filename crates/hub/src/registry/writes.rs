//! Changes to the objects of clusters.

use std::collections::{BTreeMap, BTreeSet};

use api::managed_cluster::{FROM_VALUES, ManagedCluster, ManagedClusterSpec};
use authority::Facts;
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::decisions::{add_certificate, is_revoked, revoke_all};
use super::{Clusters, Registry};
use crate::configuration::ClusterEntry;
use crate::error::{Error, KubeResultExt as _, Result};

const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;
const MAX_ATTEMPTS: usize = 20;

/// Whether a cluster could be added.
#[derive(Clone, Debug)]
pub(crate) enum Added {
    New(Box<ManagedCluster>),
    Existed,
}

impl Registry {
    /// Registers a cluster at run time.
    pub(crate) async fn add(&self, name: &str, labels: BTreeMap<String, String>) -> Result<Added> {
        self.create(name, labels, false).await
    }

    async fn create(
        &self,
        name: &str,
        labels: BTreeMap<String, String>,
        is_from_values: bool,
    ) -> Result<Added> {
        let spec = ManagedClusterSpec {
            labels,
            ..ManagedClusterSpec::default()
        };
        let mut object = ManagedCluster::new(name, spec);
        if is_from_values {
            let label = (FROM_VALUES.to_owned(), "true".to_owned());
            object.metadata.labels = Some([label].into());
        }
        match self.objects.create(&PostParams::default(), &object).await {
            Ok(created) => Ok(Added::New(Box::new(created))),
            Err(kube::Error::Api(status)) if status.code == CONFLICT => Ok(Added::Existed),
            Err(error) => Err(error).action(format!("create the ManagedCluster {name}")),
        }
    }

    /// Removes a cluster. Returns whether there was one.
    pub(crate) async fn remove(&self, name: &str) -> Result<bool> {
        match self.objects.delete(name, &DeleteParams::default()).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(false),
            Err(error) => Err(error).action(format!("delete the ManagedCluster {name}")),
        }
    }

    /// Revokes every certificate of a cluster. Returns the object, or `None` if there is none.
    pub(crate) async fn revoke(
        &self,
        name: &str,
        now: Timestamp,
    ) -> Result<Option<ManagedCluster>> {
        for _ in 0..MAX_ATTEMPTS {
            let found = self.objects.get_opt(name).await;
            let Some(mut object) = found.action(format!("read the ManagedCluster {name}"))? else {
                return Ok(None);
            };
            revoke_all(&mut object, now);
            let parameters = PostParams::default();
            match self.objects.replace(name, &parameters, &object).await {
                Ok(object) => return Ok(Some(object)),
                Err(kube::Error::Api(status)) if status.code == CONFLICT => {}
                Err(error) => return Err(error).action(format!("write the ManagedCluster {name}")),
            }
        }
        Err(Error::Conflict {
            name: name.to_owned(),
        })
    }

    /// Records a certificate before it is handed out, so that a revocation at the same moment includes it.
    /// `previous` is the certificate with which the new one was requested.
    pub(crate) async fn record_certificate(
        &self,
        name: &str,
        issued: &Facts,
        previous: Option<&Facts>,
        now: Timestamp,
    ) -> Result<()> {
        let not_registered = || Error::NotRegistered {
            name: name.to_owned(),
        };
        for _ in 0..MAX_ATTEMPTS {
            let found = self.objects.get_opt(name).await;
            let found = found.action(format!("read the ManagedCluster {name}"))?;
            let mut object = found.ok_or_else(not_registered)?;
            if is_revoked(&object, issued) || previous.is_some_and(|it| is_revoked(&object, it)) {
                return Err(Error::Revoked {
                    name: name.to_owned(),
                });
            }
            if !add_certificate(&mut object, issued, now) {
                return Ok(());
            }
            let parameters = PostParams::default();
            let written = self
                .objects
                .replace_status(name, &parameters, &object)
                .await;
            match written {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == CONFLICT => {}
                Err(kube::Error::Api(status)) if status.code == NOT_FOUND => {
                    return Err(not_registered());
                }
                Err(error) => {
                    return Err(error)
                        .action(format!("write the status of the ManagedCluster {name}"));
                }
            }
        }
        Err(Error::Conflict {
            name: name.to_owned(),
        })
    }

    /// Writes fields of the status. Fields that are not given stay.
    pub(crate) async fn patch_status(&self, name: &str, fields: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": fields }));
        let parameters = PatchParams::default();
        match self.objects.patch_status(name, &parameters, &patch).await {
            Ok(_) => Ok(()),
            // It was removed meanwhile.
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(()),
            Err(error) => {
                Err(error).action(format!("write the status of the ManagedCluster {name}"))
            }
        }
    }

    /// Makes the objects that come from the chart's values as the values are now.
    pub(crate) async fn reconcile_values(&self, entries: &[ClusterEntry]) -> Result<()> {
        for change in changes(&self.clusters(), entries) {
            match change {
                Change::Create(entry) => {
                    tracing::info!(cluster = entry.name, "cluster added from values");
                    self.create(&entry.name, entry.labels.clone(), true).await?;
                }
                Change::Label(entry) => {
                    let patch = json!({
                        "metadata": { "labels": { FROM_VALUES: "true" } },
                        "spec": { "labels": entry.labels },
                    });
                    self.patch(&entry.name, &patch).await?;
                }
                Change::Remove(name) => {
                    tracing::info!(cluster = name, "cluster removed from values");
                    self.remove(&name).await?;
                }
            }
        }
        Ok(())
    }

    async fn patch(&self, name: &str, patch: &Value) -> Result<()> {
        let patch = Patch::Merge(patch);
        let parameters = PatchParams::default();
        let written = self.objects.patch(name, &parameters, &patch).await;
        written
            .action(format!("write the ManagedCluster {name}"))
            .map(drop)
    }
}

/// Whether the object of a cluster was written for the chart's values.
pub(crate) fn is_from_values(cluster: &ManagedCluster) -> bool {
    cluster.labels().contains_key(FROM_VALUES)
}

/// A change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change<'a> {
    Create(&'a ClusterEntry),
    /// It exists, and has other labels, or was registered at run time before.
    Label(&'a ClusterEntry),
    Remove(String),
}

fn changes<'a>(clusters: &Clusters, entries: &'a [ClusterEntry]) -> Vec<Change<'a>> {
    let names: BTreeSet<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    let removed = clusters
        .iter()
        .filter(|(name, object)| is_from_values(object) && !names.contains(name.as_str()))
        .map(|(name, _)| Change::Remove(name.clone()));
    let others = entries
        .iter()
        .filter_map(|entry| match clusters.get(&entry.name) {
            None => Some(Change::Create(entry)),
            Some(object) if !is_from_values(object) || object.spec.labels != entry.labels => {
                Some(Change::Label(entry))
            }
            Some(_) => None,
        });
    removed.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn entry(name: &str, region: &str) -> ClusterEntry {
        ClusterEntry {
            name: name.to_owned(),
            backend: "agent".to_owned(),
            labels: [("region".to_owned(), region.to_owned())].into(),
        }
    }

    fn object(entry: &ClusterEntry, is_from_values: bool) -> (String, Arc<ManagedCluster>) {
        let spec = ManagedClusterSpec {
            labels: entry.labels.clone(),
            ..ManagedClusterSpec::default()
        };
        let mut object = ManagedCluster::new(&entry.name, spec);
        if is_from_values {
            object
                .labels_mut()
                .insert(FROM_VALUES.to_owned(), "true".to_owned());
        }
        (entry.name.clone(), Arc::new(object))
    }

    #[test]
    fn objects_follow_the_values_and_others_stay() {
        let (kept, moved) = (entry("kept", "eu"), entry("moved", "eu"));
        let (gone, own, adopted) = (
            entry("gone", "eu"),
            entry("own", "eu"),
            entry("adopted", "eu"),
        );
        let clusters: Clusters = [
            object(&kept, true),
            object(&moved, true),
            object(&gone, true),
            object(&own, false),
            object(&adopted, false),
        ]
        .into();
        let (new, moved) = (entry("new", "eu"), entry("moved", "us"));
        let entries = [kept, moved.clone(), new.clone(), adopted.clone()];
        let expected = vec![
            Change::Remove("gone".to_owned()),
            Change::Label(&moved),
            Change::Create(&new),
            Change::Label(&adopted),
        ];
        assert_eq!(changes(&clusters, &entries), expected);
    }
}
