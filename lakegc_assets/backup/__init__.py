"""Back up and restore the objects of marks: destinations, completeness, and the backup that a sweep may rely on.

    <place>/<repository>/<mark_id>/begun.json        the set that is backed up, written first
    <place>/<repository>/<mark_id>/objects/<address> the copies; renamed/… if the destination doesn't allow such a key
    <place>/<repository>/<mark_id>/log/…             one line per object, written by the copying tasks
    <place>/<repository>/<mark_id>/backed_up/…       one line per object, checked against a listing of the copies
    <place>/<repository>/<mark_id>/backup.json       digest, counts, bytes, and backed_up's checksum, written last

A backup is complete if its summary, backup.json, exists. Only the summary is ever replaced.
"""
