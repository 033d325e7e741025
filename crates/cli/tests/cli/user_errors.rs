//! Common mistakes: the message names the mistake and the next step.

use crate::support::Standin;

/// Two contexts of a cluster whose server does not exist.
const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: unreachable, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: me, user: {token: hunter2}}]
contexts:
- {name: east, context: {cluster: unreachable, user: me}}
- {name: west, context: {cluster: unreachable, user: me}}
current-context: east
";

#[test]
fn a_mistake_is_named_with_the_next_step() {
    let standin = Standin::new();
    let kubeconfig = standin.write("kubeconfig", KUBECONFIG);
    standin.write(
        "typo.yaml",
        "target: deployment/web\nfeature:\n  netwrok: {}\n",
    );
    standin.write("text.txt", "");
    let standin = standin.with("KUBECONFIG", &kubeconfig);
    let check = |line: &str, code: i32, expected: &[&str]| {
        let ended = standin.run(line.split(' '));
        ended.expect(code).expect_stderr(expected);
        assert!(!ended.stderr.contains("hunter2"), "{line}");
        let causes: Vec<&str> = ended.stderr.trim().split(": ").collect();
        let is_repeated = causes.windows(2).any(|two| two[0] == two[1]);
        assert!(!is_repeated, "{line}: {}", ended.stderr);
    };
    #[rustfmt::skip] // A table is read by its columns.
    let cases: &[(&str, i32, &[&str])] = &[
        ("exec -t deployment/web --context wset -- true", 125, &["there is no context `wset`", "it has east, west", "--context"]),
        ("ls --kubeconfig /nowhere",                      125, &["/nowhere", "--kubeconfig"]),
        ("exec -t deployment/web -- true",                125, &["http://127.0.0.1:1", "does not respond", "`kubectl version`"]),
        ("ls --context west",                             125, &["http://127.0.0.1:1", "does not respond", "`kubectl version`"]),
        ("operator status",                               125, &["http://127.0.0.1:1", "does not respond", "`kubectl version`"]),
        ("exec -t deploymnt/web -- true",                 125, &["deploymnt", "did you mean `deployment/web`?"]),
        ("exec -t deploy/web -- true",                    125, &["`deploy`", "did you mean `deployment/web`?"]),
        ("exec -t web -- true",                           125, &["--target web", "for example `deployment/checkout`"]),
        ("exec -f typo.yaml -- true",                     125, &["typo.yaml:3", "unknown key `netwrok`", "did you mean `network`?"]),
        ("exec -f text.txt -- true",                      125, &["text.txt ends in none of .json, .yaml, .yml and .toml"]),
        ("exec -f missing.yaml -- true",                  125, &["cannot read missing.yaml"]),
        ("exec -- true",                                  125, &["name a target", "`standin ls`"]),
        ("exec -t process/1 --port-mapping 80 -- true",   2,   &["two ports, as in 8081:8080"]),
        ("exec -t process/1",                             2,   &["<COMMAND>"]),
        ("exec -t process/1 ls -l",                       2,   &["the program comes after `--`"]),
        ("exce -t process/1 -- ls",                       2,   &["'exec'"]),
        ("exec --steel -- ls",                            2,   &["'--steal'"]),
        ("session 5eed info",                             125, &["there is no session `5eed`", "`standin sessions`"]),
        ("operator session kill nonsense",                2,   &["16 hexadecimal digits"]),
    ];
    for (line, code, expected) in cases {
        check(line, *code, expected);
    }
}
