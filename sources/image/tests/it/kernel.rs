//! Comparison of barge with Linux on mkfs.erofs images, for every option that changes the image.

use std::path::Path;
use std::thread;

use crate::bed::Bed;
use crate::compare::{Holes, same};
use crate::options::OPTIONS;
use crate::tree::planted;

#[test]
fn images_are_what_the_kernel_says() {
    let tree = planted();
    // Two threads.
    let compare = |first| {
        let half = OPTIONS.iter().skip(first).step_by(2);
        half.filter(|(options, holes)| is_the_same(options, *holes, tree.path()))
            .count()
    };
    let compared: usize = thread::scope(|scope| {
        let other = scope.spawn(|| compare(1));
        compare(0) + other.join().expect("the images are the same")
    });
    eprintln!("{compared} of {} images compared", OPTIONS.len());
}

/// Compares the image of `tree` made with these options; skips it if the image cannot be made or
/// Linux cannot mount it.
fn is_the_same(options: &[&str], holes: Holes, tree: &Path) -> bool {
    let skipped = |why: String| {
        eprintln!("skipped {options:?}: {why}");
        false
    };
    let bed = match Bed::make(options, tree) {
        Ok(bed) => bed,
        Err(why) => return skipped(why),
    };
    let mounted = match bed.mount() {
        Ok(mounted) => mounted,
        Err(why) => return skipped(why),
    };
    eprintln!("{options:?}");
    let nodes = same(&bed.open(), mounted.path(), holes);
    assert!(nodes > 1000, "{nodes}");
    true
}
