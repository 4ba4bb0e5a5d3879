from memra_mlx.dialects import sse


def test_an_event_has_its_name_and_compact_json():
    assert sse.event("ping", {"type": "ping"}) == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_data_has_no_name():
    assert sse.data({"a": [1, None, "é"]}) == 'data: {"a":[1,null,"é"]}\n\n'.encode()


def test_line_breaks_in_text_stay_inside_the_json():
    assert sse.data({"t": "a\r\nb\u2028"}).count(b"\n") == 2


def test_comment_and_done():
    assert sse.comment("keepalive") == b": keepalive\n\n"
    assert sse.DONE == b"data: [DONE]\n\n"
