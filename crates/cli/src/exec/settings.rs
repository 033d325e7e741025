//! The settings of a session: from flags, environment variables and the configuration file, in this order of precedence.

mod discover;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, anyhow};
use config::{EnvFile, Layers, Resolved, Settings, Style, Surroundings};

pub(crate) use discover::discover;

use super::ExecArguments;
use super::progress::Progress;
use crate::environment::{HOME, NOT_SETTINGS, TEMPORARY};
use crate::verify;

/// Loads the settings, and prints warnings about them.
pub(super) fn load(arguments: &ExecArguments, progress: &Progress) -> Result<Resolved> {
    let add_flags = |layers| arguments.add_to(layers);
    load_with(arguments.config_file.as_deref(), add_flags, progress)
}

/// The same, for any command.
pub(crate) fn load_with(
    file: Option<&Path>,
    add_flags: impl FnOnce(Layers) -> Layers,
    progress: &Progress,
) -> Result<Resolved> {
    let mut layers = Layers::new();
    let file = match file {
        Some(file) => Some(file.to_owned()),
        None => discover(Path::new(""), |text| progress.note(text))?,
    };
    if let Some(file) = &file {
        let (text, format) = verify::read(file)?;
        layers = layers.file(&file.display().to_string(), &text, format);
    }
    let variables = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    layers = layers.variables(variables, NOT_SETTINGS);
    match add_flags(layers).resolve() {
        Ok(resolved) => {
            for problem in resolved.warnings.problems() {
                progress.warn(&verify::in_one_line(problem));
            }
            Ok(resolved)
        }
        Err(report) => Err(anyhow!(
            "these settings cannot be used:\n{}",
            report.render(Style::Plain).trim_end()
        )),
    }
}

pub(super) fn env_file(settings: &Settings) -> Result<EnvFile> {
    let Some(file) = &settings.feature.env.env_file else {
        return Ok(EnvFile::default());
    };
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read the env file {file}"))?;
    EnvFile::parse(&text).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        anyhow!(
            "the env file {file} cannot be used:\n  {}",
            lines.join("\n  ")
        )
    })
}

/// Every key with its value and its origin, in columns.
pub(super) fn describe(resolved: &Resolved) -> String {
    let effective = resolved.effective();
    let width = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0).min(60);
    let keys = width(&mut effective.iter().map(|line| line.key.chars().count()));
    let values = width(&mut effective.iter().map(|line| line.value.chars().count()));
    let mut text = String::new();
    for line in &effective {
        text.push_str(&format!(
            "{:keys$}  {:values$}  {}\n",
            line.key,
            line.value,
            line.reason()
        ));
    }
    text
}

/// The local environment of the program, so that it finds its own code and its own files.
pub(super) fn surroundings(command: &[OsString]) -> Surroundings {
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    let variable = |name: &str| env::var_os(name).map(|value| bytes(Path::new(&value)));
    let program = command
        .first()
        .map(PathBuf::from)
        .filter(|program| program.is_absolute());
    Surroundings {
        home: variable(HOME),
        working_directory: env::current_dir().ok().map(|folder| bytes(&folder)),
        temporary: variable(TEMPORARY),
        code: program
            .and_then(|program| program.parent().map(bytes))
            .into_iter()
            .collect(),
    }
}
