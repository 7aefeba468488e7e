//! Byte-exact images: an independent parser, written from the format description and not from the
//! reader, checks the writer's output; random trees go through the writer, that parser and the
//! reader.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rofs::{BLOCK, InodeKind, Metadata, Superblock, Tables, Writer};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Directory(BTreeMap<Vec<u8>, Node>),
    File(Vec<u8>),
    Symlink(Vec<u8>),
}

/// Encodes a tree as a whole image.
fn image(root: &BTreeMap<Vec<u8>, Node>) -> Vec<u8> {
    fn tell(writer: &mut Writer, data: &mut Vec<u8>, children: &BTreeMap<Vec<u8>, Node>) {
        for (name, node) in children {
            match node {
                Node::Directory(children) => {
                    writer.enter(name).expect("short");
                    tell(writer, data, children);
                    writer.leave();
                }
                Node::File(bytes) => {
                    let (_, at) = writer.file(name, bytes.len() as u64).expect("short");
                    assert_eq!(at, data.len() as u64, "data goes to the next block");
                    data.extend(bytes);
                    data.resize(data.len().next_multiple_of(BLOCK as usize), 0);
                }
                Node::Symlink(target) => {
                    writer.symlink(name, target).expect("short");
                }
            }
        }
    }
    let (mut writer, mut image) = (Writer::new(), vec![0; BLOCK as usize]);
    tell(&mut writer, &mut image, root);
    let Metadata {
        superblock,
        tables_offset: tables_at,
        tables,
    } = writer.finish();
    assert_eq!(tables_at, image.len() as u64);
    image.extend(tables);
    image[..BLOCK as usize].copy_from_slice(&superblock);
    image
}

/// A parser that follows the format description.
mod described {
    use super::Node;
    use std::collections::BTreeMap;

    fn u64_at(image: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(image[at..at + 8].try_into().unwrap())
    }

    fn u16_at(image: &[u8], at: usize) -> usize {
        usize::from(u16::from_le_bytes(image[at..at + 2].try_into().unwrap()))
    }

    pub(super) struct Parsed {
        entries: Vec<(u64, Vec<u8>)>,
        links: Vec<Vec<u8>>,
        inodes: Vec<[u64; 4]>,
        image: Vec<u8>,
        /// The next index in each table and in the data, if everything is in the required order.
        next_inode: u64,
        next_entry: u64,
        next_link: u64,
        next_block: u64,
    }

    pub(super) fn parse(image: &[u8]) -> Node {
        let superblock: Vec<u64> = (0..8).map(|at| u64_at(image, at * 8)).collect();
        assert_eq!(superblock[..3], [0xDEAD_BEAD, 1, 512]);
        assert!(image[64..512].iter().all(|&byte| byte == 0));
        let mut at = superblock[3] as usize * 512;
        let tables = at;
        let entries = (0..superblock[5]).map(|_| {
            let (inode, len) = (u64_at(image, at), u16_at(image, at + 8));
            let name = image[at + 10..at + 10 + len].to_vec();
            at += 10 + len;
            (inode, name)
        });
        let entries = entries.collect();
        let links = (0..superblock[6]).map(|_| {
            let len = u16_at(image, at);
            let target = image[at + 2..at + 2 + len].to_vec();
            at += 2 + len;
            target
        });
        let links = links.collect();
        let inodes = (0..superblock[7]).map(|number| {
            let inode = [0, 8, 16, 24].map(|field| u64_at(image, at + field));
            at += 32;
            assert_eq!(inode[1], number + 1, "numbered from 1");
            inode
        });
        let inodes = inodes.collect();
        let bytes = at - tables;
        assert_eq!(superblock[4], bytes.div_ceil(512) as u64, "blocks counted");
        // Padded to full blocks, with a whole block if it is full, which is not counted.
        assert_eq!(image.len(), tables + (bytes / 512 + 1) * 512);
        assert!(image[at..].iter().all(|&byte| byte == 0));
        let mut parsed = Parsed {
            entries,
            links,
            inodes,
            image: image.to_vec(),
            next_inode: 1,
            next_entry: 0,
            next_link: 0,
            next_block: 1,
        };
        let root = parsed.node(1);
        assert_eq!(parsed.next_inode, superblock[7] + 1);
        assert_eq!(parsed.next_entry, superblock[5]);
        assert_eq!(parsed.next_link, superblock[6]);
        assert_eq!(parsed.next_block, superblock[3], "tables behind the data");
        root
    }

    impl Parsed {
        fn node(&mut self, number: u64) -> Node {
            assert_eq!(number, self.next_inode, "pre-order");
            self.next_inode += 1;
            let [mode, _, offset, count] = self.inodes[number as usize - 1];
            match mode {
                0x4000 => {
                    let run = self.entries[offset as usize..(offset + count) as usize].to_vec();
                    let children: BTreeMap<_, _> = (run.into_iter())
                        .map(|(inode, name)| (name, self.node(inode)))
                        .collect();
                    assert_eq!(offset, self.next_entry, "runs in post-order");
                    self.next_entry += count;
                    Node::Directory(children)
                }
                0x8000 => {
                    assert_eq!(offset, self.next_block, "data one behind the other");
                    let (at, len) = (offset as usize * 512, count as usize);
                    let end = at + len.next_multiple_of(512);
                    assert!(self.image[at + len..end].iter().all(|&byte| byte == 0));
                    self.next_block = end as u64 / 512;
                    Node::File(self.image[at..at + len].to_vec())
                }
                0xA000 => {
                    assert_eq!((offset, count), (self.next_link, 1));
                    self.next_link += 1;
                    Node::Symlink(self.links[offset as usize].clone())
                }
                other => panic!("mode {other:#x}"),
            }
        }
    }
}

/// Returns the tree according to the reader.
fn read(image: &[u8]) -> Node {
    let block = image.first_chunk().expect("a block");
    let superblock = Superblock::parse(block, image.len() as u64).expect("a superblock");
    let (at, len) = superblock.tables();
    let tables = image[at as usize..(at + len) as usize].to_vec();
    let tables = Tables::parse(&superblock, tables).expect("tables");
    fn node(image: &[u8], tables: &Tables, number: u64) -> Node {
        match tables.inode(number).expect("an inode").kind {
            InodeKind::Directory { .. } => Node::Directory(
                (tables.children(number, 0))
                    .map(|child| (child.name.to_vec(), node(image, tables, child.inode.number)))
                    .collect(),
            ),
            InodeKind::File { block, size } => {
                let at = (block * BLOCK) as usize;
                Node::File(image[at..at + size as usize].to_vec())
            }
            InodeKind::Symlink { .. } => {
                Node::Symlink(tables.target(number).expect("a target").to_vec())
            }
        }
    }
    node(image, &tables, tables.root().number)
}

fn file(len: usize) -> Node {
    Node::File((0..len).map(|at| at as u8 | 1).collect())
}

#[test]
fn files_of_every_size_around_a_block() {
    let sizes = [0, 1, 511, 512, 513, 1024, 4095, 4096, 4097];
    let tree: BTreeMap<_, _> = sizes
        .iter()
        .map(|&size| (format!("{size:04}é").into_bytes(), file(size)))
        .collect();
    let image = image(&tree);
    assert_eq!(described::parse(&image), Node::Directory(tree.clone()));
    assert_eq!(read(&image), Node::Directory(tree));
}

/// 32 bytes for the root's inode, and 42 plus the name for each file: a name of 438 bytes makes
/// 512.
#[test]
fn tables_that_fill_their_block_have_one_more_behind() {
    let tree = |len| BTreeMap::from([(vec![b'n'; len], file(0))]);
    let (exact, short) = (image(&tree(438)), image(&tree(437)));
    assert_eq!((exact.len(), short.len()), (512 * 3, 512 * 2));
    for image in [&exact, &short] {
        described::parse(image);
        assert_eq!(image[32..40], 1_u64.to_le_bytes(), "one block of tables");
    }
}

#[test]
fn a_file_of_two_names_is_there_once() {
    let mut writer = Writer::new();
    let (number, _) = writer.file(b"a", 0).expect("short");
    writer.link(b"b", number).expect("short");
    let finished = writer.finish();
    let superblock = Superblock::parse(&finished.superblock, 1024).expect("a superblock");
    let tables = Tables::parse(&superblock, finished.tables).expect("tables");
    let children: Vec<_> = tables.children(1, 0).map(|c| c.inode.number).collect();
    assert_eq!((children, tables.len()), (vec![2, 2], 2));
}

fn tree() -> impl Strategy<Value = BTreeMap<Vec<u8>, Node>> {
    let name = proptest::collection::vec(prop_oneof![1_u8..b'/', b'0'..=255], 1..40);
    let name = name.prop_filter("names", |name| name != b"." && name != b"..");
    let leaf = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..1600).prop_map(Node::File),
        proptest::collection::vec(1_u8..=255, 1..60).prop_map(Node::Symlink),
        Just(Node::Directory(BTreeMap::new())),
    ];
    let names = name.clone();
    let node = leaf.prop_recursive(4, 40, 6, move |node| {
        proptest::collection::btree_map(names.clone(), node, 0..6).prop_map(Node::Directory)
    });
    proptest::collection::btree_map(name, node, 0..6)
}

proptest! {
    #[test]
    fn every_tree_is_as_described_and_comes_back(tree in tree()) {
        let image = image(&tree);
        prop_assert_eq!(described::parse(&image), Node::Directory(tree.clone()));
        prop_assert_eq!(read(&image), Node::Directory(tree));
    }

    /// On a changed image, reading terminates, and all results are within the image.
    #[test]
    fn no_image_is_trusted(tree in tree(), changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in any::<prop::sample::Index>()) {
        let mut image = image(&tree);
        for (at, byte) in changes {
            let at = at.index(image.len());
            image[at] = byte;
        }
        let whole = image.len();
        image.truncate(cut.index(whole * 2).min(whole));
        let Some(block) = image.first_chunk() else { return Ok(()) };
        let Ok(superblock) = Superblock::parse(block, image.len() as u64) else { return Ok(()) };
        let (at, len) = superblock.tables();
        let tables = image[at as usize..(at + len) as usize].to_vec();
        if let Ok(tables) = Tables::parse(&superblock, tables) {
            for number in 0..=tables.len() + 1 {
                tables.children(number, 0).for_each(drop);
                tables.children(number, u64::MAX).for_each(drop);
                tables.target(number);
                if let Some(InodeKind::File { block, size }) = tables.inode(number).map(|inode| inode.kind) {
                    prop_assert!(size == 0 || block * BLOCK + size <= image.len() as u64);
                }
            }
        }
    }
}

/// Otherwise a few bytes could encode a tree that takes exponential time to walk.
#[test]
fn no_entry_is_of_two_directories() {
    let mut writer = Writer::new();
    for (dir, file) in [(b"a", b"x"), (b"b", b"y")] {
        writer.enter(dir).expect("short");
        writer.file(file, 0).expect("short");
        writer.leave();
    }
    let mut finished = writer.finish();
    let size = finished.tables_offset + finished.tables.len() as u64;
    let superblock = Superblock::parse(&finished.superblock, size).expect("good");
    assert!(Tables::parse(&superblock, finished.tables.clone()).is_ok());
    // Root, a, x, b, y: the children of b are made those of a.
    let inode = |number: u64| [0x4000_u64.to_le_bytes(), number.to_le_bytes()].concat();
    let place = |number: u64| {
        let begins = |bytes: &[u8]| *bytes == inode(number);
        finished
            .tables
            .windows(16)
            .position(begins)
            .expect("an inode")
            + 16
    };
    let (a, b) = (place(2), place(4));
    finished.tables.copy_within(a..a + 16, b);
    let broken = Tables::parse(&superblock, finished.tables).expect_err("broken");
    assert_eq!(broken.message, "an entry of two directories");
}
