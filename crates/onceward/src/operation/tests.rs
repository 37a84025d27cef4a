use super::*;

#[test]
fn only_a_trace_parent_is_stored() {
    let valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert!(is_trace_parent(valid));
    for wrong in [
        "",
        "Bearer secret",
        "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
    ] {
        assert!(!is_trace_parent(wrong), "{wrong}");
    }
}
