//! Sidecars of images: refused, or within bounds; a written one is read back, and every change is
//! detected.

use sidecar::{Builder, HEADER_SIZE, ReadaheadRange};

#[path = "../../images/sidecar/tests/whole/mod.rs"]
mod whole;

use whole::verify;

/// Verifies an image with its own sidecar, and one with a generated sidecar that is then changed.
pub fn image(data: &[u8]) {
    // Any input is refused or accepted.
    let _ = verify(data, None);
    let Some((&[first, count, at, flip], image)) = data.split_first_chunk() else {
        return;
    };
    if image.len() <= HEADER_SIZE {
        return;
    }
    let hot = ReadaheadRange {
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
    file[..HEADER_SIZE].copy_from_slice(&header.encode());
    let fits = count > 0
        && hot.range().start + u64::from(count - 1) * sidecar::CHUNK_SIZE < image.len() as u64;
    assert_eq!(verify(&file, None) == Ok(Some(())), fits);
    if fits && flip != 0 {
        let at = usize::from(at) * file.len() / 256;
        file[at] ^= flip;
        // Key and signature are not verified here unless present.
        let signature = (56..152).contains(&at);
        assert!(signature || verify(&file, None).is_err(), "byte {at}");
    }
}
