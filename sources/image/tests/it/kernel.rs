//! What barge reads of an image of mkfs.erofs is what Linux does, with every option that makes another image.

use crate::bed::Bed;
use crate::compare::same;
use crate::options::OPTIONS;
use crate::tree::planted;

#[test]
fn images_are_what_the_kernel_says() {
    let tree = planted();
    let mut compared = 0;
    for (options, holes) in OPTIONS {
        let bed = match Bed::make(options, tree.path()) {
            Ok(bed) => bed,
            Err(why) => {
                eprintln!("skipped {options:?}: {why}");
                continue;
            }
        };
        let mounted = match bed.mount() {
            Ok(mounted) => mounted,
            Err(why) => {
                eprintln!("skipped {options:?}: {why}");
                continue;
            }
        };
        eprintln!("{options:?}");
        let nodes = same(&bed.open(), mounted.path(), *holes);
        assert!(nodes > 3000, "{nodes}");
        compared += 1;
    }
    eprintln!("{compared} of {} images compared", OPTIONS.len());
}
