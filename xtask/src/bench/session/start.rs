//! How long programs take to start and exit, in a running session.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use serde_json::json;

use super::site::{Site, Transport};
use super::{Extent, Row, median};
use crate::process;

pub(super) fn rows(site: &mut Site, extent: &Extent) -> Result<Vec<Row>> {
    let (mut bare, mut inside) = (site.bare_worker()?, site.session_worker(Transport::Tcp)?);
    let mut rows = Vec::new();
    let programs: [(&str, Option<PathBuf>, &[&str]); 4] = [
        ("node -e 0", process::find_program("node"), &["-e", "0"]),
        (
            "python3 -c 'import json,http.client'",
            python(),
            &["-c", "import json,http.client"],
        ),
        (
            "java -version",
            process::find_program("java"),
            &["-version"],
        ),
        ("a static Go program", site.hello(), &[]),
    ];
    for (name, program, arguments) in programs {
        let Some(program) = program else {
            eprintln!("{name}: not installed, not measured");
            continue;
        };
        let request =
            json!({"do": "start", "program": program, "arguments": arguments, "count": 3});
        let (mut without, mut with) = (Vec::new(), Vec::new());
        // The first start reads files from the disk.
        bare.call(&request)?;
        for _ in 0..extent.rounds(5) {
            without.extend(bare.measure(&request, "seconds")?);
            with.extend(inside.measure(&request, "seconds")?);
        }
        rows.push(
            Row::new(format!("start of {name}"), median(with) * 1e3, "ms")
                .baseline(median(without) * 1e3)
                .ratio_at_most(1.25),
        );
    }
    Ok(rows)
}

/// The interpreter itself: the one on `PATH` may be a script that starts it.
fn python() -> Option<PathBuf> {
    let mut command = Command::new(process::find_program("python3")?);
    command.args(["-c", "import sys; print(sys.executable)"]);
    let path = process::output(&mut command).ok()?;
    Some(PathBuf::from(path.trim()))
}
