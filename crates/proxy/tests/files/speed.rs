//! What it costs, beside the bare operation. For reading, not for judging.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use proxy::FilesThrough;

use crate::world::World;

fn median(mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..201)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[100]
}

#[test]
#[ignore = "needs root"]
fn what_files_cost() {
    let world = World::new(FilesThrough::Fuse);
    world.write("small", vec![b'x'; 4096]);
    world.write("large", vec![b'x'; 64 << 20]);
    let mut bytes = vec![0; 4096];
    let one = median(|| {
        let _ = world.files().file_system(&world.path("small"));
    });
    println!("one question                    {one:?}");
    let open = median(|| {
        let file = world.open("small", libc::O_RDONLY).unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
    });
    println!("open, read 4 KiB, close         {open:?}");
    let stat = median(|| {
        world.files().metadata(&world.path("small"), true).unwrap();
    });
    println!("stat, repeated                  {stat:?}");
    let file = world.open("large", libc::O_RDONLY).unwrap();
    let bare = File::open(world.path("large")).unwrap();
    let mut again = |file: &File| median(|| file.read_exact_at(&mut bytes, 4096).unwrap());
    println!(
        "read 4 KiB again                {:?}, bare {:?}",
        again(&file),
        again(&bare)
    );
    drop(file);
    world.write("large", vec![b'y'; 64 << 20]);
    let whole = |mut file: File| {
        let mut part = vec![0; 128 * 1024];
        let start = Instant::now();
        while file.read(&mut part).unwrap() > 0 {}
        64.0 / start.elapsed().as_secs_f64()
    };
    let ours = whole(world.open("large", libc::O_RDONLY).unwrap());
    println!(
        "read 64 MiB                     {ours:.0} MiB/s, bare {:.0}",
        whole(bare)
    );
}
