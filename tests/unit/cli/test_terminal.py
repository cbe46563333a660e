from crpipe.cli.terminal import Terminal, show


def test_a_message_is_one_line_whatever_names_it_holds(capsys):
    Terminal().message("a\x1b[2Jb\ncrpipe: all is well\x07: missing")
    assert capsys.readouterr().err == "a\\x1b[2Jb\\ncrpipe: all is well\\x07: missing\n"


def test_progress_is_one_line_whatever_names_it_holds(capsys):
    Terminal().update("copy x\x1b]0;title\x07", 1, 1, "a\rb")
    assert capsys.readouterr().err == "copy x\\x1b]0;title\\x07 100%    a\\rb\n"


def test_a_report_keeps_its_lines_and_nothing_that_steers_a_terminal(capsys):
    show("range\tstate\n\u202eelif\x9b31m été ±")
    assert capsys.readouterr().out == "range\tstate\n\\u202eelif\\x9b31m été ±\n"
