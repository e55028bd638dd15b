"""Backups of marks, and their way back: where they may be, when they are whole, and what a sweep may rely on.

    <place>/<repository>/<mark_id>/begun.json        for which set, written first
    <place>/<repository>/<mark_id>/objects/<address> the copies; renamed/… where the place can't hold such a key
    <place>/<repository>/<mark_id>/log/…             a line an object, by the tasks that copied
    <place>/<repository>/<mark_id>/backed_up/…       the same, one line an object, held against a listing of the copies
    <place>/<repository>/<mark_id>/backup.json       digest, counts, bytes and that list's checksum, written last

A backup exists when its summary does. Nothing in it is ever replaced but the summary.
"""
