use super::*;
#[test]
fn placeholder() {
    let _ = Facts::default();
}
