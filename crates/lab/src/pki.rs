//! The keys, certificates and kubeconfigs of a cluster.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use base64::Engine as _;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};

use crate::error::{ErrorContext as _, Result};
use crate::plan::{ClusterPlan, NodePlan};

const CLUSTER_AUTHORITY: &str = "ca";
const FRONT_PROXY_AUTHORITY: &str = "front-proxy-ca";

const ADMINISTRATORS: &str = "system:masters";
const NODES: &str = "system:nodes";
const API_SERVER_NAMES: [&str; 5] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
];

/// Creates what all nodes of a cluster share: two certificate authorities and the key of service accounts.
pub(crate) fn create_authorities(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    for name in [CLUSTER_AUTHORITY, FRONT_PROXY_AUTHORITY] {
        let key = KeyPair::generate()?;
        let certificate = authority_parameters(name).self_signed(&key)?;
        write(folder, &format!("{name}.crt"), &certificate.pem())?;
        write(folder, &format!("{name}.key"), &key.serialize_pem())?;
    }
    let accounts = KeyPair::generate()?;
    write(folder, "sa.key", &accounts.serialize_pem())?;
    write(folder, "sa.pub", &accounts.public_key_pem())
}

/// Creates the certificates of one node in `folder`, signed by the authorities in `authorities`.
pub(crate) fn create_node(
    folder: &Path,
    authorities: &Path,
    cluster: &ClusterPlan,
    node: &NodePlan,
) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    for name in ["ca.crt", "ca.key", "front-proxy-ca.crt", "sa.key", "sa.pub"] {
        let text = read(authorities, name)?;
        write(folder, name, &text)?;
    }
    let signer = Signer::load(authorities, CLUSTER_AUTHORITY)?;
    let front_proxy = Signer::load(authorities, FRONT_PROXY_AUTHORITY)?;
    let kubelet = format!("system:node:{}", node.name);
    let node_addresses = [node.address, Ipv4Addr::LOCALHOST];
    let api_server_addresses = [node.address, Ipv4Addr::LOCALHOST, cluster.service_address];
    for (file, signer, leaf) in [
        (
            "apiserver",
            &signer,
            Leaf::server(
                "kube-apiserver",
                None,
                &API_SERVER_NAMES,
                &api_server_addresses,
            ),
        ),
        (
            "apiserver-kubelet",
            &signer,
            Leaf::client("apiserver-kubelet", Some(ADMINISTRATORS)),
        ),
        (
            "front-proxy",
            &front_proxy,
            Leaf::client("front-proxy", None),
        ),
        (
            "kubelet-server",
            &signer,
            Leaf::server(&kubelet, Some(NODES), &[&node.name], &node_addresses),
        ),
    ] {
        signer.sign(&leaf)?.write(folder, file)?;
    }
    let authority = read(folder, "ca.crt")?;
    for (user, leaf) in [
        ("admin", Leaf::client("admin", Some(ADMINISTRATORS))),
        (
            "controller-manager",
            Leaf::client("system:kube-controller-manager", None),
        ),
        ("scheduler", Leaf::client("system:kube-scheduler", None)),
        ("kubelet", Leaf::client(&kubelet, Some(NODES))),
        ("proxy", Leaf::client("system:kube-proxy", None)),
    ] {
        let signed = signer.sign(&leaf)?;
        let access = Access {
            cluster,
            authority: &authority,
            certificate: &signed.certificate,
            key: &signed.key,
        };
        write(
            folder,
            &format!("{user}.kubeconfig"),
            &kubeconfig(&[access]),
        )?;
        signed.write(folder, user)?;
    }
    Ok(())
}

/// The entry of one cluster in a kubeconfig.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access<'a> {
    pub(crate) cluster: &'a ClusterPlan,
    pub(crate) authority: &'a str,
    pub(crate) certificate: &'a str,
    pub(crate) key: &'a str,
}

/// A kubeconfig with one context for each cluster, with the cluster's name; the first is current.
pub(crate) fn kubeconfig(accesses: &[Access<'_>]) -> String {
    let section = |title: &str, entry: &dyn Fn(&Access<'_>) -> String| {
        let entries: String = accesses.iter().map(entry).collect();
        format!("{title}:\n{entries}")
    };
    let mut text = "apiVersion: v1\nkind: Config\n".to_owned();
    text += &section("clusters", &|access| {
        format!(
            "- name: {name}\n  cluster:\n    server: {server}\n    certificate-authority-data: {authority}\n",
            name = access.cluster.name,
            server = access.cluster.api_server(),
            authority = base64(access.authority.as_bytes()),
        )
    });
    text += &section("users", &|access| {
        format!(
            "- name: {name}\n  user:\n    client-certificate-data: {certificate}\n    client-key-data: {key}\n",
            name = access.cluster.name,
            certificate = base64(access.certificate.as_bytes()),
            key = base64(access.key.as_bytes()),
        )
    });
    text += &section("contexts", &|access| {
        let name = &access.cluster.name;
        format!("- name: {name}\n  context:\n    cluster: {name}\n    user: {name}\n")
    });
    if let Some(first) = accesses.first() {
        text += &format!("current-context: {}\n", first.cluster.name);
    }
    text
}

/// A certificate that is to be signed.
struct Leaf<'a> {
    name: &'a str,
    group: Option<&'a str>,
    usage: ExtendedKeyUsagePurpose,
    names: &'a [&'a str],
    addresses: &'a [Ipv4Addr],
}

impl<'a> Leaf<'a> {
    fn server(
        name: &'a str,
        group: Option<&'a str>,
        names: &'a [&'a str],
        addresses: &'a [Ipv4Addr],
    ) -> Self {
        Leaf {
            name,
            group,
            usage: ExtendedKeyUsagePurpose::ServerAuth,
            names,
            addresses,
        }
    }

    fn client(name: &'a str, group: Option<&'a str>) -> Self {
        Leaf {
            name,
            group,
            usage: ExtendedKeyUsagePurpose::ClientAuth,
            names: &[],
            addresses: &[],
        }
    }
}

/// A signed certificate and its key, in PEM.
struct Signed {
    certificate: String,
    key: String,
}

impl Signed {
    fn write(&self, folder: &Path, name: &str) -> Result<()> {
        write(folder, &format!("{name}.crt"), &self.certificate)?;
        write(folder, &format!("{name}.key"), &self.key)
    }
}

struct Signer {
    issuer: Issuer<'static, KeyPair>,
}

impl Signer {
    fn load(folder: &Path, name: &str) -> Result<Self> {
        let key = KeyPair::from_pem(&read(folder, &format!("{name}.key"))?)?;
        Ok(Signer {
            issuer: Issuer::new(authority_parameters(name), key),
        })
    }

    fn sign(&self, leaf: &Leaf<'_>) -> Result<Signed> {
        let key = KeyPair::generate()?;
        let names: Vec<String> = leaf.names.iter().copied().map(str::to_owned).collect();
        let mut parameters = CertificateParams::new(names)?;
        let addresses = leaf
            .addresses
            .iter()
            .map(|address| SanType::IpAddress(IpAddr::V4(*address)));
        parameters.subject_alt_names.extend(addresses);
        parameters.distinguished_name = distinguished_name(leaf.name, leaf.group);
        parameters.extended_key_usages = vec![leaf.usage.clone()];
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.not_before = date_time_ymd(2020, 1, 1);
        parameters.not_after = date_time_ymd(2099, 1, 1);
        parameters.use_authority_key_identifier_extension = true;
        let certificate = parameters.signed_by(&key, &self.issuer)?;
        Ok(Signed {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn authority_parameters(name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = distinguished_name(&format!("lab-{name}"), None);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    parameters.not_before = date_time_ymd(2020, 1, 1);
    parameters.not_after = date_time_ymd(2099, 1, 1);
    parameters
}

/// Kubernetes reads a client's user from the name and its groups from the organization.
fn distinguished_name(user: &str, group: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if let Some(group) = group {
        name.push(DnType::OrganizationName, group);
    }
    name.push(DnType::CommonName, user);
    name
}

pub(crate) fn read(folder: &Path, name: &str) -> Result<String> {
    let path = folder.join(name);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// Some of these files are private keys, so all of them are readable only by their owner.
pub(crate) fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    let write = || -> std::io::Result<()> {
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        std::io::Write::write_all(&mut &file, text.as_bytes())
    };
    write().with_context(|| format!("write {}", path.display()))
}

/// Base64 as kubeconfigs and Kubernetes objects carry certificates and keys.
pub fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
