//! Questions to the user.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use anyhow::{Context as _, Result, bail};

/// Whether there is a user who can be asked.
pub(super) fn is_possible() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a question. Everything but `y` and `yes` is a no.
pub(super) fn confirm(question: &str) -> Result<bool> {
    let mut output = io::stderr();
    write!(output, "{question} [y/N] ")?;
    output.flush()?;
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    read.context("your answer cannot be read")?;
    Ok(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Asks before something that cannot be undone. Without a terminal, `--yes` has to be given.
pub(super) fn ensure_confirmed(yes: bool, question: &str) -> Result<()> {
    if yes {
        return Ok(());
    }
    if !is_possible() {
        bail!("this cannot be confirmed without a terminal; --yes does it without a question");
    }
    match confirm(question)? {
        true => Ok(()),
        false => bail!("nothing was changed"),
    }
}
