//! The images of a bench in a lab: `standind` and `workload`.

use std::path::PathBuf;

use anyhow::Result;
use lab::image::{Image, recipes};
use lab::standind::{self, Profile};
use lab::{Lab, Paths, Progress};

use super::Extent;
use super::session::programs::Programs;
use super::session::site::Folder;
use crate::workspace;

const WORKLOAD: &str = "registry.lab/workload:1";
/// The folder of small files in pods of the bench.
pub(super) const TREE: &str = "/mnt";
const SMALL_FILE: usize = 4096;

/// Builds the programs: for users, and statically linked for images.
pub(super) fn build_programs() -> Result<()> {
    Programs::build()?;
    let (root, target) = (workspace::root()?, workspace::image_target()?);
    standind::build_static(&root, &target, Profile::Release, &["server", "workload"])?;
    Ok(())
}

/// The programs that run in pods: they need no other file.
pub(super) struct ImagePrograms {
    standind: PathBuf,
    workload: PathBuf,
}

impl ImagePrograms {
    pub(super) fn find(programs: &Programs, extent: &Extent) -> Result<Self> {
        if extent.programs.is_some() {
            return Ok(Self {
                standind: programs.standind.clone(),
                workload: programs.workload.clone(),
            });
        }
        let target = workspace::image_target()?;
        let built = |program| standind::built(&target, Profile::Release, program);
        Ok(Self {
            standind: built("standind"),
            workload: built("workload"),
        })
    }

    /// Loads the images into all clusters. Pods of the bench have `small_files` small files.
    pub(super) fn load(
        &self,
        lab: &Lab,
        paths: &Paths,
        folder: &Folder,
        progress: &Progress,
        small_files: usize,
    ) -> Result<()> {
        let workload = Image::new(WORKLOAD)
            .file("/workload", &self.workload, 0o755)
            .entrypoint(["/workload"]);
        let workload = (0..small_files).fold(workload, |image, number| {
            let path = format!("{TREE}/small-{number}");
            image.bytes(path, vec![b'a'; SMALL_FILE], 0o644)
        });
        let images = [
            standind::image(standind::REFERENCE, &self.standind),
            workload,
        ];
        for (number, image) in images.iter().enumerate() {
            let archive = image.write(&folder.0.join(format!("{number}.tar")))?;
            lab.load_image(archive.path())?;
        }
        let sandbox = recipes::sandbox(&paths.images(), &|text| progress.step(text))?;
        lab.load_image(sandbox.path())?;
        Ok(())
    }
}
