//! What a session is to be: from the file, the environment and the flags, each before the one in front of it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, anyhow};
use config::{EnvFile, Layers, Settings, Style, Surroundings};

use super::ExecArguments;
use crate::environment::NOT_SETTINGS;
use crate::verify;

pub(super) fn load(arguments: &ExecArguments) -> Result<Settings> {
    let mut layers = Layers::new();
    if let Some(file) = &arguments.config_file {
        let (text, format) = verify::read(file)?;
        layers = layers.file(&file.display().to_string(), &text, format);
    }
    let variables = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    layers = layers.variables(variables, NOT_SETTINGS);
    if let Some(target) = &arguments.target {
        layers = layers.flag("--target", "target", target);
    }
    match layers.resolve() {
        Ok(resolved) => Ok(resolved.settings),
        Err(report) => Err(anyhow!("{}", report.render(Style::Plain))),
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

/// What is around the process on this machine, so that it finds its own code and its own files.
pub(super) fn surroundings(command: &[OsString]) -> Surroundings {
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    let variable = |name: &str| env::var_os(name).map(|value| bytes(Path::new(&value)));
    let program = command
        .first()
        .map(PathBuf::from)
        .filter(|program| program.is_absolute());
    Surroundings {
        home: variable("HOME"),
        working_directory: env::current_dir().ok().map(|folder| bytes(&folder)),
        temporary: variable("TMPDIR"),
        code: program
            .and_then(|program| program.parent().map(bytes))
            .into_iter()
            .collect(),
    }
}
