"""A shop with Django. An order, its job and the stock change in one transaction: all of it is there, or nothing.

export DJANGO_SETTINGS_MODULE=django_shop.settings
python -m django migrate
python -m django runserver
curl localhost:8000/orders -d customer=acme -d item=tea -d pieces=2
"""
