//! The sidecar of images: refused, or within its bounds; what was written is read again, and no change to it goes unseen.

use sidecar::{Broken, Builder, HEADER, Header, Hot, Manifest, Shape, hash};

/// An image with its sidecar as it comes, and one that is given a sidecar and then changed.
pub fn image(data: &[u8]) {
    // Whatever it is, it is refused or taken.
    let _ = verify(data);
    let Some((&[first, count, at, flip], image)) = data.split_first_chunk() else {
        return;
    };
    if image.len() <= HEADER {
        return;
    }
    let hot = Hot {
        first: first.into(),
        count: count.into(),
    };
    let mut builder = Builder::default();
    image
        .chunks(usize::from(at) * 100 + 1)
        .for_each(|piece| builder.append(piece));
    let first = &image[..builder.first_chunk()];
    let Some((behind, header)) = builder.finish(first, &[hot]) else {
        return;
    };
    let mut file = [image, &behind].concat();
    file[..HEADER].copy_from_slice(&header.encode());
    let fits =
        count > 0 && hot.range().start + u64::from(count - 1) * sidecar::CHUNK < image.len() as u64;
    assert_eq!(verify(&file) == Ok(true), fits);
    if fits && flip != 0 {
        let at = usize::from(at) * file.len() / 256;
        file[at] ^= flip;
        // Key and signature are held against nothing here, unless there are some.
        let signature = (56..152).contains(&at);
        assert!(signature || verify(&file).is_err(), "byte {at}");
    }
}

/// Whether there is a sidecar, and all is as it says.
fn verify(file: &[u8]) -> Result<bool, Broken> {
    let Some(head) = file.first_chunk() else {
        return Ok(false);
    };
    let Some(header) = Header::parse(head, file.len() as u64)? else {
        return Ok(false);
    };
    assert_eq!(header.encode(), *head);
    let _ = header.is_consistent();
    let at = |range: core::ops::Range<u64>| &file[range.start as usize..range.end as usize];
    let manifest = Manifest::parse(&header, at(header.manifest()))?;
    let shape = header.shape();
    for level in 0..shape.levels().len() {
        for number in 0..shape.chunks(level) {
            let expected = match level + 1 < shape.levels().len() {
                true => {
                    let (chunk, place) = Shape::above(number);
                    at(shape.chunk(level + 1, chunk))[place].to_vec()
                }
                false => manifest.hash(number).expect("as many as chunks").to_vec(),
            };
            if hash(at(shape.chunk(level, number)), (level, number) == (0, 0))[..] != expected {
                return Err(Broken::Damaged("a chunk"));
            }
        }
    }
    Ok(true)
}
