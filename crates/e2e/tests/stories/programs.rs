//! Every kind of program stands in for a process, unmodified.
//!
//! All take the same tour, and all must see the same. Outside of a session none of them sees any of it.

use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Result, ensure};
use e2e::fixture::{Program, Recipe};
use e2e::machine::{Ended, Target, network};
use e2e::{LaterWorld, Needs, tell};
use libtest_mimic::Trial;

use super::surroundings::{cache, programs};

/// What a stand-in sees. A name has two addresses, and it is the library's choice which one is tried first.
const TOUR: [(&str, &[&str]); 18] = [
    ("env", &[Target::VARIABLE.1]),
    ("read", &["open all day"]),
    ("secret", &["a secret of the target"]),
    ("list", &["bread,cake,tea"]),
    ("missing", &["ENOENT"]),
    ("create", &["ok"]),
    ("append", &["ok"]),
    ("reread", &["first,second"]),
    ("rename", &["ok"]),
    ("remove", &["ok"]),
    ("hostname", &[network::HOST_NAME]),
    ("dns", &[network::SERVER]),
    ("dns6", &[network::SERVER6, "fd77:0:0:0:0:0:0:80"]),
    ("http", &["hello 10.77.0.2", "hello fd77::2"]),
    ("udp", &["ping"]),
    ("udp-unconnected", &["ping"]),
    ("udp6", &["ping"]),
    ("udp6-unconnected", &["ping"]),
];

/// Bash has no sockets that are not connected.
const NOT_IN_BASH: [&str; 2] = ["udp-unconnected", "udp6-unconnected"];

/// Without a session they are the same: there is no such file anywhere.
const SAME_OUTSIDE: [&str; 1] = ["missing"];

/// Finds or compiles a program.
type Make = fn() -> Result<Program>;

pub(crate) fn stories(world: &Arc<LaterWorld>) -> Vec<Trial> {
    let kinds: [(&'static str, Make); 12] = [
        ("a_static_go_program_stands_in", || {
            compiled(Recipe::GO_STATIC)
        }),
        ("a_go_program_with_cgo_stands_in", || {
            Ok(compiled(Recipe::GO_CGO)?.variables(&[("GODEBUG", "netdns=cgo")]))
        }),
        ("a_rust_program_stands_in", || compiled(Recipe::RUST)),
        ("a_dynamic_c_program_stands_in", || {
            compiled(Recipe::C_DYNAMIC)
        }),
        ("a_static_c_program_stands_in", || {
            compiled(Recipe::C_STATIC)
        }),
        ("a_musl_program_stands_in", || compiled(Recipe::C_MUSL)),
        ("a_python_program_stands_in", || {
            Ok(Program::script("python3", "programs/python/tour.py"))
        }),
        ("a_node_program_stands_in", || {
            Ok(Program::script("node", "programs/node/tour.mjs"))
        }),
        ("a_java_program_stands_in", java),
        ("a_bash_script_stands_in", || {
            Ok(Program::script("bash", "programs/bash/tour.sh"))
        }),
        ("a_perl_program_stands_in", || {
            Ok(Program::script("perl", "programs/perl/tour.pl"))
        }),
        ("a_tree_of_programs_stands_in", || {
            Ok(Program::script("sh", "programs/tree/tour.sh"))
        }),
    ];
    kinds
        .into_iter()
        .map(|(name, program)| {
            tell(world, name, Needs::Machine, async move |_| {
                check(name, program()?)
            })
        })
        .collect()
}

fn compiled(recipe: Recipe) -> Result<Program> {
    Program::compiled(recipe, &cache())
}

fn java() -> Result<Program> {
    let classes = Recipe::JAVA.make(&cache())?;
    Ok(Program {
        folder: classes.clone(),
        command: ["java".into(), "-cp".into(), classes.into(), "Tour".into()].into(),
        variables: &[],
    })
}

/// Takes the tour outside and inside of a session, and looks at what it left at the target.
fn check(name: &str, program: Program) -> Result<()> {
    let mut program = program.argument(name);
    let is_tree = name == "a_tree_of_programs_stands_in";
    if is_tree {
        program = program.argument(Recipe::GO_STATIC.make(&cache())?);
    }
    let target = Target::start()?;
    target.write("/etc/shop/settings", "open all day\n")?;
    for dish in ["tea", "bread", "cake"] {
        target.write(&format!("/etc/shop/menu/{dish}"), dish)?;
    }
    target.write(
        "/run/secrets/standin.test/account/token",
        "a secret of the target\n",
    )?;
    let outside = Ended::of(program.prepare(&mut outside(&program)))?;
    let inside = Ended::of(
        program
            .prepare(&mut programs()?.exec(&target, &program.command))
            .env("STANDIN_FS_MODE", "write"),
    )?;
    let mut problems: Vec<String> = TOUR
        .iter()
        .filter(|(key, _)| !(name.contains("bash") && NOT_IN_BASH.contains(key)))
        .filter_map(|(key, expected)| problem(key, expected, &inside, &outside))
        .collect();
    if is_tree {
        for key in ["shell", "python"] {
            problems.extend(problem(key, &["open all day"], &inside, &outside));
        }
    }
    problems.extend(remains(&target, name));
    ensure!(
        problems.is_empty() && inside.code == Some(0),
        "{}\n\ninside it {inside}\noutside it {outside}",
        problems.join("\n")
    );
    Ok(())
}

/// The program as it is, without a session. Its network is empty, so that it learns at once that nobody answers.
fn outside(program: &Program) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--net", "--"])
        .args(&program.command)
        .stdin(Stdio::null());
    command
}

fn problem(key: &str, expected: &[&str], inside: &Ended, outside: &Ended) -> Option<String> {
    let seen = inside.value(key);
    if !seen.is_some_and(|value| expected.contains(&value)) {
        let seen = seen.map_or("has no such line".to_owned(), |value| {
            format!("says {value:?}")
        });
        return Some(format!(
            "{key} should be {expected:?}, but the program {seen}"
        ));
    }
    let outside = outside.value(key)?;
    (expected.contains(&outside) && !SAME_OUTSIDE.contains(&key))
        .then(|| format!("{key} is {outside:?} without a session, too"))
}

/// What the program must have left at the target, and nothing else.
fn remains(target: &Target, name: &str) -> Option<String> {
    let file = format!("{name}.done");
    let names = target.list("/srv/orders").unwrap_or_default();
    let content = target
        .read(&format!("/srv/orders/{file}"))
        .unwrap_or_else(|error| format!("{error:#}"));
    (names != [file.as_str()] || content != "first\nsecond\n")
        .then(|| format!("at the target are {names:?}, and {file} has {content:?}"))
}
