//! The recorded vectors on the reference: what makes it one.

use crate::files;
use crate::model::Model;
use crate::recorded::replay;

#[test]
fn reference_reproduces_the_recorded_vectors() {
    let mut sequences = 0;
    for file in files::all().iter().filter(|f| f.of_scheduler()) {
        for sequence in file.sequences() {
            replay(file, &sequence, Model::new);
            sequences += 1;
        }
    }
    assert!(sequences >= 21, "{sequences} sequences");
}
