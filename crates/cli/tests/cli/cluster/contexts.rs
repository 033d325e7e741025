//! `standin cluster kubeconfig`, read by the types and used by the client of a Kubernetes library.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::hub::{Hub, POWERLESS_TOKEN};
use super::{logged_in, run, standin};
use crate::support::Standin;

fn contexts(kubeconfig: &Kubeconfig) -> Vec<&str> {
    kubeconfig
        .contexts
        .iter()
        .map(|context| context.name.as_str())
        .collect()
}

/// What the API server of this context's cluster says that its version is. The hub of the tests says the cluster's name.
fn version_at(standin: &Standin, mut kubeconfig: Kubeconfig, context: &str) -> String {
    let home = standin.path("home").to_string_lossy().into_owned();
    let home = HashMap::from([
        ("name".to_owned(), "HOME".to_owned()),
        ("value".to_owned(), home),
    ]);
    for user in &mut kubeconfig.auth_infos {
        let exec = user.auth_info.as_mut().and_then(|user| user.exec.as_mut());
        if let Some(exec) = exec {
            exec.env = Some(vec![home.clone()]);
        }
    }
    let options = KubeConfigOptions {
        context: Some(context.to_owned()),
        ..KubeConfigOptions::default()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .unwrap();
        let client = Client::try_from(config).unwrap();
        client.apiserver_version().await.unwrap().git_version
    })
}

#[test]
fn contexts_are_merged_into_the_users_kubeconfig() {
    let hub = Hub::start();
    let other = "apiVersion: v1\nkind: Config\ncurrent-context: mine\n\
        clusters: [{name: mine, cluster: {server: 'https://10.0.0.1'}}]\n\
        contexts: [{name: mine, context: {cluster: mine, user: mine, namespace: '007'}}]\n\
        users: [{name: mine, user: {token: '0123'}}]\n";
    let standin = logged_in(&hub);
    let file = standin.write("kubeconfig", other);
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    let standin = standin.with("KUBECONFIG", &file);
    let written = run(&standin, "cluster kubeconfig");
    written.expect(0);
    let name = hub.name();
    let expected = format!(
        "wrote to {}:\n  {name}/new\n  {name}/prod-eu\n  {name}/prod-us\nnext: `kubectl --context {name}/new get pods`\n",
        file.display()
    );
    assert_eq!(written.stdout, expected);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);

    let kubeconfig = Kubeconfig::read_from(&file).unwrap();
    assert_eq!(kubeconfig.current_context.as_deref(), Some("mine"));
    assert_eq!(contexts(&kubeconfig)[0], "mine");
    let mine = kubeconfig.contexts[0].context.as_ref().unwrap();
    assert_eq!(mine.namespace.as_deref(), Some("007"));
    let context = format!("{name}/prod-eu");
    assert!(contexts(&kubeconfig).contains(&context.as_str()));
    let cluster = kubeconfig
        .clusters
        .iter()
        .find(|cluster| cluster.name == context);
    let cluster = cluster
        .and_then(|cluster| cluster.cluster.as_ref())
        .unwrap();
    assert_eq!(
        cluster.server,
        Some(format!("{}/clusters/prod-eu", hub.url))
    );
    assert!(cluster.certificate_authority_data.is_some());
    let user = kubeconfig
        .auth_infos
        .iter()
        .find(|user| user.name == name)
        .unwrap();
    let user = user.auth_info.as_ref().unwrap();
    assert!(user.token.is_none());
    let exec = user.exec.as_ref().unwrap();
    assert_eq!(
        exec.api_version.as_deref(),
        Some("client.authentication.k8s.io/v1")
    );
    assert_eq!(exec.args.as_ref().unwrap()[..2], ["cluster", "credential"]);

    // The client runs the credential plugin, trusts the authority, and adds its paths to that of the cluster.
    assert_eq!(version_at(&standin, kubeconfig, &context), "prod-eu");

    let again = fs::read_to_string(&file).unwrap();
    run(&standin, "cluster kubeconfig").expect(0);
    assert_eq!(fs::read_to_string(&file).unwrap(), again);
}

#[test]
fn one_context_can_be_written_elsewhere() {
    let hub = Hub::start();
    let standin = logged_in(&hub);
    let printed = run(&standin, "cluster kubeconfig --cluster prod-us --output -");
    printed.expect(0);
    let kubeconfig = Kubeconfig::from_yaml(&printed.stdout).unwrap();
    assert_eq!(contexts(&kubeconfig), [format!("{}/prod-us", hub.name())]);
    run(
        &standin,
        "cluster kubeconfig --cluster prod-us --output new/file",
    )
    .expect(0);
    let file = standin.path("new/file");
    assert_eq!(fs::read_to_string(&file).unwrap(), printed.stdout);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    // Without KUBECONFIG.
    run(&standin, "cluster kubeconfig").expect(0);
    assert!(standin.path("home/.kube/config").exists());
}

#[test]
fn the_file_follows_the_authority() {
    let (hub, other) = (Hub::start(), Hub::start());
    let standin = logged_in(&hub);
    let both = format!("{}{}", hub.authority, other.authority);
    hub.rotate_authority(&both);
    let data = |standin: &Standin| {
        let printed = run(standin, "cluster kubeconfig --cluster prod-eu -o -");
        printed.expect(0);
        let kubeconfig = Kubeconfig::from_yaml(&printed.stdout).unwrap();
        let cluster = kubeconfig.clusters[0].cluster.clone().unwrap();
        cluster.certificate_authority_data.unwrap().len()
    };
    let after = data(&standin);
    assert!(after > both.len(), "{after}");
    hub.rotate_authority(&hub.authority);
    assert!(data(&standin) < after);
}

#[test]
fn users_who_may_not_list_clusters_name_theirs() {
    let hub = Hub::start();
    let standin = logged_in(&hub);
    standin.write("token", POWERLESS_TOKEN);
    let line = format!(
        "cluster login {} --ca-file ca.crt --token-file token",
        hub.url
    );
    run(&standin, &line).expect(0);
    run(&standin, "cluster kubeconfig")
        .expect(125)
        .expect_stderr(&["--cluster NAME", "`list` on `managedclusters`"]);
    run(&standin, "cluster kubeconfig --cluster prod-eu -o -").expect(0);
}

#[test]
fn a_hub_without_an_authority_needs_one_for_kubectl() {
    let hub = Hub::with_description(&serde_json::json!({ "caBundle": null }));
    let standin = standin();
    standin.write("token", super::GOOD_TOKEN);
    let line = format!(
        "cluster login {} --pin {} --token-file token",
        hub.url, hub.pin
    );
    run(&standin, &line)
        .expect(0)
        .expect_stderr(&["kubectl will not accept it"]);
    run(&standin, "cluster kubeconfig -o -")
        .expect(125)
        .expect_stderr(&["--ca-file FILE"]);
}
