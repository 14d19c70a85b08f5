"""What people read of an inference server whose replicas are told as one: on Slack, by mail, in a list of a storm."""

from __future__ import annotations

import json
from dataclasses import replace

from fakes.block_kit import links, words
from incident_watch import Watch, replica
from sample_views import LEAK
from slack_stories import notify_decision
from tidegauge.core.incidents.wording import incident_sentence
from tidegauge.core.jobs.replicas import Replicas
from tidegauge.core.verdicts import OK
from tidegauge_exporter.links import Links
from tidegauge_exporter.mail.mail_text import owner_letter, replicas_letter
from tidegauge_exporter.messages.headlines import replicas_sentence
from tidegauge_exporter.messages.values import Story, ToldReplicas
from tidegauge_exporter.notify.ports import Message
from tidegauge_exporter.notify.replicas import told_as_one
from tidegauge_exporter.slack import messages
from tidegauge_exporter.slack.blocks import MAX_FIELDS
from tidegauge_exporter.slack.clickable import ClickableMessages
from tidegauge_exporter.slack.clicks import Buttons

LINKS = Links("https://grafana.example/", "https://tidegauge.example/")


class Server:
    def __init__(self) -> None:
        self.watch = Watch()

    def story(self, *leaking: int, for_s: float = 1.0) -> Story:
        """As it is once these of its eight replicas leak."""
        self.watch.see(*(replica(number, LEAK if number in leaking else OK) for number in range(8)), for_s=for_s)
        newest = {change.incident.number: change.incident for change in self.watch.told}
        newest |= {one.number: one for one in self.watch.tracker.incidents}
        (joined,) = told_as_one([Story(one) for one in newest.values()])
        return joined

    def head(self, story: Story) -> Message:
        return messages.incident_message(story, cluster="prod", links=LINKS, now_unix_s=self.watch.now_s)


def read(message: Message) -> str:
    return "\n".join([message.text, *words(message.blocks)])


def many(*names: str, running: int = 8) -> ToldReplicas:
    story = Server().story(0)
    assert story.replicas is not None
    return story.replicas._replace(names=names, running=running)


def test_slack_says_of_a_server_how_many_replicas_leak_which_and_where_to_look_first() -> None:
    server = Server()
    told = server.head(server.story(0, 1, 2))
    assert told.text.endswith("Memory leak in 3 of 8 replicas of ada's job team-a/vllm: out of memory in 14–22 min")
    text = read(told)
    assert "Rank 0 of job team-a/vllm (replica 0) leaks 12.0 MiB per step" in text
    assert "3 of 8 replicas: `replica 0, replica 1, replica 2`" in text
    assert "`replica 0`, rank 0 on `node0`" in text
    assert "Incidents 1, 2, 3" in text
    assert all(len(block.get("fields", ())) < MAX_FIELDS for block in told.blocks), "none is cut off"


def test_two_counts_of_a_server_in_one_message_say_what_each_counts() -> None:
    """A leak in one replica's draft model, another growth in the other replica."""
    server, two = Server(), Replicas("StatefulSet", 2, 2)
    server.watch.see(replace(replica("replica 0, container draft"), replicas=two))
    (story,) = told_as_one([Story(server.watch.incident)])
    assert story.replicas is not None
    sentence = f"{replicas_sentence(story.incident, story.replicas)} {incident_sentence(story.incident)}"
    assert sentence.startswith("1 of 2 replicas of job team-a/vllm (container draft) leaks memory. Rank 0 of job")
    assert sentence.endswith(" In all, memory grows in 2 of 2 replicas, whatever the cause or process.")


def test_links_and_buttons_of_a_server_lead_to_an_incident_that_is_open() -> None:
    server = Server()
    server.story(0, 1)
    story = server.story(1, for_s=200)
    assert story.incident.number == 1
    assert links(server.head(story).blocks)["Report"] == "https://tidegauge.example/report?incident=2"
    clickable = ClickableMessages(Buttons(b"key"))
    shown = clickable.incident_message(story, cluster="prod", links=LINKS, now_unix_s=server.watch.now_s)
    subject = f".2.{round(story.look_first.opened_unix_s * 1000)}."
    assert subject in json.dumps(shown.blocks)


def test_the_end_of_a_servers_story_names_no_replica() -> None:
    server = Server()
    server.story(0, 1)
    told = server.head(server.story(for_s=200))
    assert told.text.endswith("Resolved: memory leak in ada's job team-a/vllm")
    assert "replica" not in read(told)


def test_one_reply_names_some_replicas_and_counts_the_others_and_a_hostile_name_is_tamed() -> None:
    story = Server().story(0)
    names = ("<!channel>\n", *(f"pod {number}" for number in range(1, 8)))
    reply = messages.replicas_reply(replace(story, replicas=many(*names)))
    assert reply.text.endswith("8 of 8 replicas of job team-a/vllm leak.")
    assert "pod 1, pod 2, pod 3 and 4 more" in read(reply)
    assert "<!channel>" not in read(reply)
    (one, _) = messages.replicas_reply(replace(story, replicas=many("pod 1", running=1)))
    assert one.endswith("1 of 1 replica of job team-a/vllm leaks memory.")


def test_the_head_of_a_storm_counts_the_replicas_of_a_server() -> None:
    server = Server()
    told = messages.storm_message([server.story(0, 1)], cluster="prod", links=LINKS, now_unix_s=server.watch.now_s)
    assert "Memory leak in 2 of 8 replicas of ada's job team-a/vllm" in read(told)


def test_all_mails_about_a_server_have_one_subject_however_many_replicas_leak() -> None:
    server = Server()
    first = server.story(0)
    letter = owner_letter(
        notify_decision(first), first, cluster="rose", links=LINKS, now_unix_s=server.watch.now_s, has_plot=False
    )
    assert letter.subject == "Memory leak in your job team-a/vllm (incident 1 on rose)"
    assert "Memory leak in 1 of 8 replicas of your job team-a/vllm: out of memory" in letter.text
    later = replicas_letter(server.story(0, 1), cluster="rose", links=LINKS)
    assert later.subject == f"Re: {letter.subject}"
    assert later.text.startswith("2 of 8 replicas of job team-a/vllm leak.\n\nreplica 0, replica 1\n")
